"""The contract of runners."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from pprs.certify.dataset import certify_dataset
from pprs.errors import ConfigurationError
from pprs.noise import Gaussian
from pprs.partition import Grid
from pprs.progress import Silent
from pprs.runners import Local, Runner
from pprs.runs import Row, Run, open_run
from pprs.smoothing.sampling import Sampling

Array = npt.NDArray[Any]
Shape = tuple[int, int, int]


REFUSED, UNREADABLE, IMAGES, SIDE = 2, 5, 12, 8


class ContractNetwork(torch.nn.Module):
    """Class 1 for bright images; it refuses black ones. Runners load it as `pprs.testing:ContractNetwork`."""

    num_classes = 2
    threshold: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("threshold", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.mean()) < 0.2:
            raise ValueError("this network refuses black images")
        score = x.mean((1, 2, 3)) - self.threshold
        return torch.stack([-score, score], 1)


class ChangingNetwork(ContractNetwork):
    """A network that gives another label from its 600th image on, as one that adapts itself may."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        scores = super().forward(x)
        return scores if self.seen < 600 else -scores


class ContractImages:
    """Gray images around the network's threshold: one is black, and one cannot be read."""

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == UNREADABLE:
            raise OSError("the file is damaged")
        brightness = 0.0 if index == REFUSED else 0.45 + 0.15 * index / IMAGES
        return torch.full((1, SIDE, SIDE), brightness), 1


class Interrupting(Silent):
    """Raises KeyboardInterrupt, as Ctrl-C does, once this many images are done."""

    def __init__(self, after: float = math.inf) -> None:
        self._left = after

    def advance(self, amount: float, note: str = "") -> None:
        self._left -= amount
        if self._left <= 0:
            raise KeyboardInterrupt


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A run that was interrupted and resumed, and the rows that it had in between."""

    run: Run
    before: list[Row]
    interrupted: bool
    folder: tempfile.TemporaryDirectory[str]  # the run lives as long as this does


class RunnerContract(ABC):
    """What every runner promises: the rows of the local runner, whatever happens on the way."""

    @abstractmethod
    def make_runner(self) -> Runner:
        """Return the runner to test."""

    def test_rows_are_those_of_the_local_runner(self) -> None:
        expected, rows = _without_times(_certify(Local())), _without_times(self._outcome().run)
        missing = sorted(expected.keys() - rows.keys())
        assert not missing, f"images {missing} have no row"
        for index, row in rows.items():
            assert row == expected.get(index), f"image {index} has the row {row}, locally {expected.get(index)}"

    def test_failures_are_recorded(self) -> None:
        failures = {failure.idx: failure for failure in self._outcome().run.failures()}
        assert sorted(failures) == [REFUSED, UNREADABLE], f"images {sorted(failures)} are recorded as failed"
        assert "this network refuses black images" in failures[REFUSED].error, failures[REFUSED].error
        assert "the file is damaged" in failures[UNREADABLE].error, failures[UNREADABLE].error

    def test_a_bad_image_does_not_stop_the_others(self) -> None:
        done = {row.idx for row in self._outcome().run.rows()}
        assert done == set(range(IMAGES)) - {REFUSED, UNREADABLE}, f"only the images {sorted(done)} were certified"

    def test_resumes_after_an_interrupt(self) -> None:
        outcome = self._outcome()
        assert outcome.interrupted, "a KeyboardInterrupt in this process did not end the run"
        before = {row.idx: row for row in outcome.before}
        assert 0 < len(before) < IMAGES - 2, f"{len(before)} of {IMAGES} images have a row after 4 were reported"
        kept = {row.idx: row for row in outcome.run.rows() if row.idx in before}
        assert kept == before, "rows that were there before the interrupt were lost or certified again"

    def test_a_network_that_changes_is_refused(self) -> None:
        with tempfile.TemporaryDirectory(prefix="pprs-") as folder:
            out, refused = Path(folder) / "run", None
            try:
                _certify(self.make_runner(), out, model="pprs.testing:ChangingNetwork")
            except ConfigurationError as error:
                refused = str(error)
            assert refused is not None, "a network that changed during the run was not noticed: see Execution.confirm"
            assert "not one function" in refused, f"the run was refused for another reason: {refused}"
            expected = {row.idx: row.counts for row in _certify(Local()).rows()}
            wrong = [row.idx for row in open_run(out).rows() if row.counts != expected[row.idx]]
            assert not wrong, f"images {wrong} have the rows of a network that had changed"

    def _outcome(self) -> Outcome:
        """Certify all images, with an interrupt on the way; once per class, since starting workers takes a while."""
        outcome: Outcome | None = type(self).__dict__.get("_cached")
        if outcome is None:
            folder = tempfile.TemporaryDirectory(prefix="pprs-")
            out, interrupted, before = Path(folder.name) / "run", False, list[Row]()
            try:
                _certify(self.make_runner(), out, Interrupting(after=4))
            except KeyboardInterrupt:
                interrupted, before = True, open_run(out).rows()
            outcome = Outcome(_certify(self.make_runner(), out), before, interrupted, folder)
            type(self)._cached = outcome  # type: ignore[attr-defined]
        return outcome


def _certify(
    runner: Runner,
    out: Path | None = None,
    progress: Interrupting | None = None,
    model: str = "pprs.testing:ContractNetwork",
) -> Run:
    return certify_dataset(
        model, ContractImages(), noise=Gaussian(0.25), partition=Grid(4), runner=runner,
        sampling=Sampling(n0=16, n=300, alpha=0.01, stop="radius:0.1"), progress=progress or Interrupting(),
        out=out, engine="torch",
    )  # fmt: skip


def _without_times(run: Run) -> dict[int, Row]:
    return {row.idx: dataclasses.replace(row, seconds=0.0) for row in run.iter_rows()}
