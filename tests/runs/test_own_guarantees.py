"""A guarantee that is in no table: how it is run, opened by commands, exported, and shown on cards."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import pprs
from networks import save_network

from pprs import PprsError, open_run, verify_run
from pprs.certify.guarantee import CERTIFY
from pprs.errors import ConfigurationError, DamagedError
from pprs.integrations.card import make_card
from pprs.runners import run_dataset
from pprs.runs import Run

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.append(str(EXAMPLES))

from shifts import SHIFTS, ShiftGuarantee, ShiftRow, ShiftSettings  # noqa: E402


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[str, str]:
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "d.npz", x=images, y=np.array([0, 1, 2, 0, 1]))
    return str(save_network(tmp_path / "m.safetensors")), str(tmp_path / "d.npz")


def run(inputs: tuple[str, str], out: Path, **options: Any) -> Run:
    return run_dataset(SHIFTS, *inputs, out=out, engine="torch", progress=False, **options)


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    [
        ({"settings": {"raech": 1}}, "settings", 'a run over shifts has no setting "raech". Did you mean "reach"?'),
        ({"settings": {"reach": 99}}, "settings", 'the setting "reach" is 99, but must be an integer from 1 to 16'),
        ({"settings": {"reach": {1}}}, "settings", "`settings` must be texts, numbers and lists"),
        ({"noise": "gaussian:sigma=0.5"}, "noise", "`noise` does not apply here: a run over shifts draws no noise"),
        ({"partition": "grid:size=2"}, "partition", "`partition` does not apply here"),
        ({"budget": "1m"}, "budget", "`budget` does not apply here"),
    ],
)
def test_bad_arguments(inputs: tuple[str, str], options: dict[str, Any], parameter: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        run_dataset(SHIFTS, *inputs, **options)
    assert error.value.parameter == parameter
    assert message in error.value.message


def test_a_class_is_no_guarantee(inputs: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="give an object of your class, not the class"):
        run_dataset(ShiftGuarantee, *inputs)  # type: ignore[arg-type]


def test_commands_import_it_where_it_is_named(inputs: tuple[str, str], tmp_path: Path) -> None:
    run(inputs, tmp_path / "run", settings={"reach": 1})
    own = ("--guarantee", "shifts:SHIFTS")
    printed = pprs("verify", tmp_path / "run", *own, "--replay", 5, cwd=tmp_path).stdout
    assert "labels: found again for all shifts and compared (5 rows)" in printed
    pprs("report", tmp_path / "run", *own, "--out", tmp_path / "r.json", cwd=tmp_path)
    (method,) = json.loads((tmp_path / "r.json").read_text())
    assert (method["inputs"], method["settings"]["reach"]) == (5, 1)
    pprs("card", tmp_path / "run", *own, "--out", tmp_path / "card.md", cwd=tmp_path)
    pprs("export", tmp_path / "run", *own, "--format", "csv", "--out", tmp_path / "rows.csv", cwd=tmp_path)
    assert open_run(tmp_path / "rows.csv", guarantee=SHIFTS).settings.reach == 1
    for place, message in (
        (None, 'this run promises "shifts", which this version of pprs does not know'),
        ("nowhere:SHIFTS", '--guarantee "nowhere:SHIFTS" cannot be imported (ModuleNotFoundError'),
        ("shifts:NONE", '--guarantee "shifts:NONE" cannot be imported (AttributeError'),
        ("shifts:shift", '--guarantee "shifts:shift" is a function'),
    ):
        given = () if place is None else ("--guarantee", place)
        assert message in pprs("verify", tmp_path / "run", *given, cwd=tmp_path, code=2).stderr


def test_a_forged_column_that_follows_from_others_is_refused(inputs: tuple[str, str], tmp_path: Path) -> None:
    """Nothing is read from it, but people read it."""
    pprs_run = run(inputs, tmp_path / "run")
    pprs("export", tmp_path / "run", "--guarantee", "shifts:SHIFTS", "--format", "json", "--out", tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    assert len(open_run(tmp_path / "r.json", guarantee=SHIFTS).rows()) == len(pprs_run.rows())
    content["rows"][3]["certified"] = 1 - content["rows"][3]["certified"]
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(DamagedError, match='row 4 is damaged: "certified" is'):
        open_run(tmp_path / "r.json", guarantee=SHIFTS).rows()


def test_a_card_has_a_section_for_each_kind(inputs: tuple[str, str], tmp_path: Path) -> None:
    own = {"n0": 10, "n": 60, "alpha": 0.05, "bound": "one-sided", "stop": None}
    noisy = run_dataset(CERTIFY, *inputs, settings=own, noise="gaussian:sigma=0.25", engine="torch", progress=False)
    card = make_card([noisy, run(inputs, tmp_path / "run")], replay=2)
    assert "## Certified robustness\n" in card.section
    assert "## Promised: no shift within the reach of the run alters the label\n" in card.section
    first, second = card.results
    assert first["metrics"][0]["args"]["verification"].startswith("verified: the votes of 2 of 5 rows")
    arguments = second["metrics"][0]["args"]
    assert arguments["verification"].startswith("verified: the labels of 2 of 5 rows, chosen at random, were found")
    assert (arguments["reach"], arguments["inputs"]) == (2, 5)
    assert "noise" not in arguments  # nothing was drawn
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "d.npz", x=np.zeros((5, 1, 8, 8), np.uint8), y=np.arange(5) % 3)
    with pytest.raises(PprsError, match="cannot be verified, so there is no card: this is not the data of the run"):
        make_card([run(inputs, tmp_path / "run")], replay=2, model=inputs[0], data=str(tmp_path / "other" / "d.npz"))


class Unchecked(ShiftGuarantee):
    check = ShiftGuarantee.__mro__[1].check  # as if it were left out

    def describe_tally(self, rows: int, total: float) -> str:
        return "nothing"


def test_what_nothing_follows_from_is_not_called_derived(inputs: tuple[str, str], tmp_path: Path) -> None:
    found = verify_run(run(inputs, tmp_path / "run"), progress=False)
    assert "claims: derived from the rows and the settings (5 rows)" in found.checked
    opened = open_run(tmp_path / "run", guarantee=Unchecked())
    found = verify_run(opened, progress=False)
    assert "values: of their types, and in their ranges (5 rows)" in found.checked


def test_a_summary_states_the_share_with_the_correct_label(inputs: tuple[str, str], tmp_path: Path) -> None:
    finished = run(inputs, tmp_path / "run")
    rows: list[ShiftRow] = finished.rows()
    certified, correct = SHIFTS.summarise(finished).metrics
    assert certified.value == sum(row.certified for row in rows) / 5
    assert correct.value == sum(row.certified and row.prediction == row.label for row in rows) / 5
    assert certified.low is not None
    assert certified.high is not None
    assert certified.low <= certified.value <= certified.high
    assert isinstance(finished.settings, ShiftSettings)
