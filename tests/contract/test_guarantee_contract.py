"""Guarantees of this package, and the one that the example writes from nothing, through their contract."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image
import pytest
import torch
from networks import write_masked_images

from pprs import LabelSets, load_model
from pprs.certify.guarantee import CERTIFY
from pprs.dither import Dither
from pprs.dither.guarantee import DITHER
from pprs.label_sets import LabelSetSettings
from pprs.label_sets.guarantee import LABEL_SET
from pprs.patches.guarantee import PatchGuarantee
from pprs.prediction.guarantee import PREDICT
from pprs.runs import Failure, Key, Known, Question, Session
from pprs.runs.columns import Schema
from pprs.runs.guarantee import Metric, RunSummary
from pprs.segmentation.guarantee import SEGMENT
from pprs.testing import GuaranteeContract

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))  # workers import the example by its name

from shifts import SHIFTS, ShiftAnswer, ShiftGuarantee, ShiftRow, ShiftSettings  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SIDE = 8


def write_inputs(folder: Path) -> tuple[str, str]:
    """Write images, some of them near the threshold of a network that tells dark ones from bright ones."""
    rng = np.random.default_rng(0)
    for i, brightness in enumerate((129, 190, 60, 126, 220, 90, 200, 50)):
        (folder / "data" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.clip(brightness + rng.integers(-25, 26, (SIDE, SIDE)), 0, 255).astype(np.uint8)
        PIL.Image.fromarray(pixels).save(folder / "data" / "ab"[i % 2] / f"{i}.png")
    return "pprs.testing:ContractNetwork", str(folder / "data")


def calibrate(model: str, shape: tuple[int, ...], class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings of label sets that were calibrated with random images of random labels."""
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.integers(0, 256, (60, *shape))).float() / 255
    labels = torch.from_numpy(rng.integers(0, len(class_names), 60))
    opened = replace(load_model(model), class_names=class_names)
    sets = LabelSets.fit(
        opened,
        images,
        labels,
        noise="gaussian:sigma=0.25",
        radius=0.05,
        alpha=0.4,
        randomised=True,
        engine="torch",
        partition=None,
    )
    return LabelSetSettings.own(sets.calibration)


class TestCertify(GuaranteeContract):
    guarantee = CERTIFY
    settings: ClassVar[dict[str, Any]] = {"n0": 10, "n": 60, "alpha": 0.05, "bound": "one-sided", "stop": None}
    options: ClassVar[dict[str, Any]] = {"noise": "gaussian:sigma=0.25", "partition": "slic:n_segments=6", "seed": 3}
    unchecked: ClassVar[dict[str, str]] = {
        "n0": "the votes that select a class are not stored, and one more of them selects the same one"
    }
    absent = ("name",)

    def make_inputs(self, folder: Path) -> tuple[str, str]:
        return write_inputs(folder)


class TestSegment(GuaranteeContract):
    guarantee = SEGMENT
    settings: ClassVar[dict[str, Any]] = {"tau": 0.75, "n0": 8, "n": 60, "alpha": 0.05, "groups": "none"}
    options: ClassVar[dict[str, Any]] = {"noise": "gaussian:sigma=0.25", "partition": "blur:size=3", "seed": 3}
    unchecked: ClassVar[dict[str, str]] = {
        "alpha": "claims are derived from the counts, for the alpha that the run states"
    }
    absent = ("name",)

    def make_inputs(self, folder: Path) -> tuple[str, str]:
        return write_masked_images(folder)


class TestDither(GuaranteeContract):
    guarantee = DITHER
    settings: ClassVar[dict[str, Any]] = {"dither_text": str(Dither(60)), "estimator_text": "local:sigma=0.5"}

    def make_inputs(self, folder: Path) -> tuple[str, str]:
        return write_inputs(folder)


class TestPatch(GuaranteeContract):
    guarantee = PatchGuarantee((1, 2))
    settings: ClassVar[dict[str, Any]] = {"masks": 3, "fill_text": "mean"}
    unchecked: ClassVar[dict[str, str]] = {
        "passes": "without a certificate, the search ends at the first pair that differs, which depends on the batches"
    }
    absent = ("name", "shape")

    def make_inputs(self, folder: Path) -> tuple[str, str]:
        return write_inputs(folder)


class TestPredict(GuaranteeContract):
    guarantee = PREDICT
    settings: ClassVar[dict[str, Any]] = {"n": 40, "alpha": 0.05}
    options: ClassVar[dict[str, Any]] = {"noise": "gaussian:sigma=0.5", "partition": "slic:n_segments=6", "seed": 3}
    unchecked: ClassVar[dict[str, str]] = {"alpha": "what follows from the votes at another alpha holds for it"}

    def make_inputs(self, folder: Path) -> tuple[str, str]:
        return write_inputs(folder)


class TestLabelSets(GuaranteeContract):
    guarantee = LABEL_SET
    options: ClassVar[dict[str, Any]] = {"noise": "gaussian:sigma=0.25", "partition": None, "seed": 3}
    settings: ClassVar[dict[str, Any]] = calibrate("pprs.testing:ContractNetwork", (1, SIDE, SIDE), ("a", "b"))

    def make_inputs(self, folder: Path) -> tuple[str, str]:
        return write_inputs(folder)


class TestShifts(GuaranteeContract):
    guarantee = SHIFTS
    settings: ClassVar[dict[str, Any]] = {"reach": 1}

    def make_inputs(self, folder: Path) -> tuple[str, str]:
        return write_inputs(folder)


class Nameless(ShiftGuarantee):
    def make_row(self, key: Key, outcome: Any, known: Known, seconds: float) -> ShiftRow:
        return super().make_row(key, outcome, replace(known, name=None), seconds)


class Unlabelled(ShiftGuarantee):
    def make_row(self, key: Key, outcome: Any, known: Known, seconds: float) -> ShiftRow:
        return replace(super().make_row(key, outcome, known, seconds), label=None)


class Unbound(ShiftGuarantee):
    def make_row(self, key: Key, outcome: Any, known: Known, seconds: float) -> ShiftRow:
        return replace(super().make_row(key, outcome, known, seconds), image_digest=None)


class Agrees(ShiftGuarantee):
    def compare(self, row: ShiftRow, again: ShiftRow) -> list[str]:
        return []


class Credulous(ShiftGuarantee):
    """Takes the stored count for the truth, so that nothing is compared with it."""

    def check(self, row: ShiftRow, settings: ShiftSettings) -> list[str]:
        return []

    def compare(self, row: ShiftRow, again: ShiftRow) -> list[str]:
        return super().compare(replace(row, shifts=again.shifts), again)


class Suspicious(ShiftGuarantee):
    def check(self, row: ShiftRow, settings: ShiftSettings) -> list[str]:
        return ["label 1 cannot be"] if row.prediction == 1 else []


class Collides(ShiftGuarantee):
    def list_keys(self, images: Sequence[int], settings: ShiftSettings) -> list[Key]:
        return [(index // 2,) for index in images]


class Skips(ShiftGuarantee):
    def list_keys(self, images: Sequence[int], settings: ShiftSettings) -> list[Key]:
        return [(index,) for index in images if index != 2]


class Flatters(ShiftGuarantee):
    """Counts inputs that failed as certified."""

    def summarise(self, run: Any) -> RunSummary:
        summary = super().summarise(run)
        certified = sum(row.certified for row in run.iter_rows()) + len(summary.failures)
        return replace(summary, metrics=(Metric("certified", certified / max(summary.inputs, 1)),))


class Forgets(ShiftGuarantee):
    """Leaves out inputs that failed."""

    def summarise(self, run: Any) -> RunSummary:
        summary = super().summarise(run)
        return replace(summary, inputs=summary.inputs - len(summary.failures), failures=())


class Generous(ShiftGuarantee):
    def failed_row(self, failure: Failure) -> ShiftRow:
        return replace(super().failed_row(failure), prediction=0, shifts=1, held=1)


class Renamed(ShiftGuarantee):
    name = "renamed"


class Loses(ShiftGuarantee):
    """Has no column for the label of the image."""

    schema = Schema(ShiftRow, tuple(column for column in SHIFTS.schema.columns if column.name != "prediction"))


class Answering(ShiftGuarantee):
    """Answers in another way."""

    def __init__(self, change: Callable[[ShiftAnswer, dict[str, Any]], dict[str, Any]]) -> None:
        self.change = change

    def open(self, session: Session, settings: ShiftSettings) -> ShiftAnswer:
        change = self.change

        class Changed(ShiftAnswer):
            seen = 0

            def answer(self, question: Question, on_passes: Any) -> dict[str, Any]:
                self.seen += 1
                return change(self, super().answer(question, on_passes))

            def digest(self, image: torch.Tensor) -> str:
                return change(self, {"image_digest": super().digest(image)})["image_digest"]

        return Changed(session, settings.reach)


def hold(count: Callable[[ShiftAnswer], int]) -> Answering:
    """Return a guarantee in which the shifts that hold follow from the answer's own state."""
    return Answering(
        lambda answer, outcome: {**outcome, "held": 1 + count(answer) % 9} if "held" in outcome else outcome
    )


def count_calls(answer: ShiftAnswer) -> int:
    return answer.seen  # type: ignore[attr-defined, no-any-return]


BY_PROCESS = hold(lambda answer: int(multiprocessing.parent_process() is None))
CALLS = itertools.count()
UNSEEDED = hold(lambda answer: next(CALLS))
UNBOUND = Answering(lambda answer, outcome: {**outcome, "image_digest": "0"})
BROKEN = [
    (Nameless(), "test_rows_name_their_input"),
    (Unlabelled(), "test_rows_name_their_input"),
    (Unbound(), "test_rows_name_their_input"),
    (Agrees(), "test_every_changed_value_is_found"),
    (Credulous(), "test_every_changed_value_is_found"),
    (Suspicious(), "test_an_honest_run_is_verified"),
    (Collides(), "test_every_input_has_its_rows_in_order"),
    (Skips(), "test_every_input_has_its_rows_in_order"),
    (Flatters(), "test_the_summary_counts_failures_as_not_certified"),
    (Forgets(), "test_the_summary_counts_failures_as_not_certified"),
    (Generous(), "test_rows_promise_a_share"),
    (Renamed(), "test_settings_survive_the_file"),
    (Loses(), "test_settings_survive_the_file"),
    (hold(count_calls), "test_an_answer_depends_on_its_input_alone"),
    (hold(lambda answer: answer.scorer.batch_size or 0), "test_an_answer_depends_on_its_input_alone"),
    (UNSEEDED, "test_a_killed_run_resumes_to_the_same_rows"),
    (UNSEEDED, "test_resuming_adds_what_lacks"),
    (BY_PROCESS, "test_workers_give_the_same_rows"),
    (UNBOUND, "test_a_changed_input_is_refused"),
]


@pytest.mark.parametrize(("broken", "name"), BROKEN, ids=[f"{i}-{name}" for i, (_, name) in enumerate(BROKEN)])
def test_a_broken_guarantee_fails_its_contract(broken: ShiftGuarantee, name: str) -> None:
    contract = type("Broken", (TestShifts,), {"guarantee": broken})()
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(contract, name)()
