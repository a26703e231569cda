"""Every guarantee has every capability, or docs/guarantees.md says why it cannot have it.

The matrix follows from the table of guarantees: a guarantee that is added to it needs an entry in CASES, a column on
the page, and a line there for each capability that it cannot have.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from helpers import Record, pprs
from networks import save_network, save_unet
from pools import start_cluster

from pprs import Gaussian, Grid, LabelSets, Processes, open_run, verify_run
from pprs.errors import PprsError
from pprs.integrations.card import make_card
from pprs.label_sets.row import LabelSetSettings
from pprs.patches.guarantee import PatchGuarantee
from pprs.report import make_report, write_report
from pprs.runners import Ray, run_dataset
from pprs.runs import FILE, GUARANTEES, Guarantee, Run, find_guarantee
from pprs.runs.export import FORMATS
from pprs.runs.registry import import_place
from pprs.runs.remote import working_folder
from pprs.testing.store import snapshot

sys.path.append(str(Path(__file__).parents[2] / "examples"))
PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"
COUNT = 4
Inputs = tuple[str, str]


def write_images(folder: Path) -> Inputs:
    """Write a network of three classes, and images in folders that are named after the classes."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for i in range(6):
        (folder / "data" / "abc"[i % 3]).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8), np.uint8)
        PIL.Image.fromarray(pixels).save(folder / "data" / "abc"[i % 3] / f"{i}.png")
    return str(save_network(folder / "m.safetensors")), str(folder / "data")


def write_maps(folder: Path) -> Inputs:
    """Write a network that labels pixels, and images with their masks."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for i in range(6):
        for kind, values in (("images", rng.integers(0, 256, (8, 8))), ("masks", rng.integers(0, 3, (8, 8)))):
            (folder / "data" / kind).mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(values.astype(np.uint8)).save(folder / "data" / kind / f"{i}.png")
    return str(save_unet(folder / "m.safetensors", side=8)), str(folder / "data")


def calibrate(inputs: Inputs) -> Mapping[str, Any]:
    """Return the settings of label sets that are calibrated for a network."""
    levels = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(1))
    images, labels = levels.float() / 255, torch.arange(40) % 3
    sets = LabelSets.fit(
        inputs[0], images, labels, noise=Gaussian(0.25), partition=Grid(4), radius=0.05, alpha=0.2, engine="torch"
    )
    return LabelSetSettings.own(sets.calibration)


@dataclass(frozen=True)
class Case:
    """How a guarantee is tried.

    Attributes:
        command: The command that makes a run of it.
        tab: The tab of the app.
        settings: Its own settings.
        options: Keywords of `run_dataset`.
        budgeted: What a run with a budget needs besides.
        labels: A choice of labels.
        make_inputs: Writes a model and at least 4 inputs into a folder.
        guarantee: What is promised, if not what the table has.
        prepare: Makes more of its own settings, of the inputs.
    """

    command: str
    tab: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    budgeted: Mapping[str, Any] = field(default_factory=dict)
    labels: str = "a,b"
    make_inputs: Callable[[Path], Inputs] = write_images
    guarantee: Guarantee[Any, Any] | None = None
    prepare: Callable[[Inputs], Mapping[str, Any]] = lambda inputs: {}


NOISY = {"noise": "gaussian:sigma=0.25", "partition": "grid:size=4", "seed": 3}
CASES = {
    "certify": Case(
        "certify", "Explore", {"n0": 10, "n": 80, "alpha": 0.05, "bound": "one-sided", "stop": None}, NOISY,
        {"stop": "width:0.01"},
    ),
    "segment": Case(
        "segment", "Segment", {"tau": 0.75, "n0": 4, "n": 40, "alpha": 0.05, "groups": "none"}, NOISY,
        make_inputs=write_maps,
    ),
    "predict": Case("predict", "", {"n": 60, "alpha": 0.05}, NOISY),
    "label-set": Case("predict-set", "Label set", {}, NOISY, prepare=calibrate),
    "dither": Case("certify", "Certain", {"dither_text": "dither:levels=40", "estimator_text": "local:sigma=0.5"}),
    "patch": Case("patch", "Patch", {"masks": 3, "fill_text": "mean"}, guarantee=PatchGuarantee((1, 2))),
}  # fmt: skip


@dataclass
class Trial:
    """A guarantee with inputs and a finished run."""

    name: str
    case: Case
    inputs: Inputs
    folder: Path  # of the finished run

    @property
    def guarantee(self) -> Any:
        return self.case.guarantee or find_guarantee(self.name)

    @property
    def run(self) -> Run:
        return open_run(self.folder)

    def make(self, out: Path | str, settings: Mapping[str, Any] | None = None, **more: Any) -> Run:
        chosen: dict[str, Any] = {"images": range(COUNT), "engine": "torch", "progress": False, "out": out}
        own = {**self.case.settings, **self.case.prepare(self.inputs), **(settings or {})}
        return run_dataset(self.guarantee, *self.inputs, settings=own, **{**chosen, **self.case.options, **more})

    def rows(self, run: Run | None = None) -> list[tuple[Any, ...]]:
        """Return rows as they are stored, without times."""
        schema = self.guarantee.schema
        kept = [i for i, column in enumerate(schema.stored) if column.field != "seconds"]
        return [tuple(schema.to_sql(row)[i] for i in kept) for row in (run or self.run).iter_rows()]

    def help(self) -> str:
        return pprs(self.case.command, "--help").stdout


# ---- the capabilities


def try_workers(trial: Trial, folder: Path) -> None:
    assert trial.rows(trial.make(folder / "run", runner=Processes(2))) == trial.rows()
    assert "--workers" in trial.help()


def try_ray(trial: Trial, folder: Path) -> None:
    assert trial.rows(trial.make(folder / "run", runner=Ray(2))) == trial.rows()
    assert "--runner" in trial.help()


def try_machines(trial: Trial, folder: Path) -> None:
    """Each of two machines resumes what the other has uploaded."""
    url = f"file://{folder}/shared"
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setenv("PPRS_CACHE", str(folder / "one"))
        trial.make(url, images=range(2))
        patch.setenv("PPRS_CACHE", str(folder / "two"))
        messages = Record()
        run = trial.make(url, progress=messages)
    assert any(text.startswith("resuming: ") for text in messages.messages), messages.messages
    assert trial.rows(run) == trial.rows()


def try_folder(trial: Trial, folder: Path) -> None:
    trial.make(folder / "run")
    assert (folder / "run" / FILE).is_file()
    assert "--out" in trial.help()


def try_url(trial: Trial, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PPRS_CACHE", str(folder / "cache"))
        trial.make(f"file://{folder}/run")
        assert working_folder(f"file://{folder}/run").is_dir()
    assert trial.rows(open_run(f"file://{folder}/run")) == trial.rows()
    assert (folder / "run" / "rows.parquet").is_file()


def try_kill(trial: Trial, folder: Path) -> None:
    states = snapshot(lambda out: trial.make(out), folder / "states")
    for place in np.linspace(0, len(states) - 1, 5).astype(int):
        assert trial.rows(trial.make(states[place])) == trial.rows()


def try_interrupt(trial: Trial, folder: Path) -> None:
    class Interrupting(Record):
        def advance(self, amount: float, note: str = "") -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial.make(folder / "run", progress=Interrupting())
    assert trial.rows(trial.make(folder / "run")) == trial.rows()


def try_budget(trial: Trial, folder: Path) -> None:
    own = trial.case.budgeted
    trial.make(folder / "run", own, budget="60samples")
    passes = sum(row.samples for row in open_run(folder / "run").rows())
    run = trial.make(folder / "run", own)
    assert sum(row.samples for row in run.rows()) > passes
    assert "--budget" in trial.help()


def try_selection(trial: Trial, folder: Path) -> None:
    run = trial.make(folder / "run", images=[1, 3])
    assert {row.idx for row in run.iter_rows()} == {1, 3}
    for flag in ("--start", "--stride", "--limit"):
        assert flag in trial.help()


def try_labels(trial: Trial, folder: Path) -> None:
    run = trial.make(folder / "run", labels=trial.case.labels, images=None)
    assert run.settings.labels == tuple(trial.case.labels.split(","))
    assert verify_run(run, replay=COUNT, progress=False).ok
    assert "--labels" in trial.help()


def try_pixels(trial: Trial, folder: Path) -> None:
    run = trial.make(folder / "run", pixels="file")
    assert run.settings.pixels == "file"
    assert verify_run(run, replay=COUNT, progress=False).ok
    assert "--pixels" in trial.help()


def try_engine(trial: Trial, folder: Path) -> None:
    run = trial.make(folder / "run", device="cpu", threads=1, autocast=True, channels_last=True)
    assert (run.settings.engine, run.settings.device) == ("torch", "cpu")
    assert (run.settings.autocast, run.settings.channels_last) == (True, True)
    for flag in ("--engine", "--device", "--autocast", "--channels-last", "--threads"):
        assert flag in trial.help()


def try_progress(trial: Trial, folder: Path) -> None:
    record = Record()
    trial.make(folder / "run", progress=record)
    (place,) = [i for i, stage in enumerate(record.stages) if stage[0] == trial.guarantee.verb]
    assert record.stages[place][1] == pytest.approx(record.done_in[place]), "the stage does not end at its total"


def try_failures(trial: Trial, folder: Path) -> None:
    inputs = trial.case.make_inputs(folder)
    broken = next(path for path in Path(inputs[1]).rglob("*.png") if path.parent.name != "masks")
    content = broken.read_bytes()
    broken.write_bytes(b"no picture")
    damaged = dataclasses.replace(trial, inputs=inputs)
    run = damaged.make(folder / "run", images=None)
    assert run.failures(), "nothing has failed"
    for failure in run.failures():  # one for each of its rows
        assert failure.name is not None
        assert failure.name.endswith(broken.name)
        assert failure.idx not in {row.idx for row in run.rows()}
    broken.write_bytes(content)


def try_verify(trial: Trial, folder: Path) -> None:
    printed = pprs("verify", trial.folder, "--model", trial.inputs[0], "--data", trial.inputs[1]).stdout
    assert f"{len(trial.rows())} rows" in printed
    assert "mismatch" not in printed


def try_replay(trial: Trial, folder: Path) -> None:
    found = verify_run(trial.run, replay=COUNT, progress=False)
    assert found.ok, str(found)
    assert sorted(found.replayed) == list(range(COUNT))


def try_report(trial: Trial, folder: Path) -> None:
    for kind in ("html", "md", "json"):
        pprs("report", trial.folder, "--out", folder / f"r.{kind}")
        assert (folder / f"r.{kind}").stat().st_size > 100


def try_mixed_report(trial: Trial, folder: Path) -> None:
    others = [other for other in GUARANTEES if other != trial.name][:1]
    if others:
        (folder / "other").mkdir()
        other = Trial(others[0], CASES[others[0]], CASES[others[0]].make_inputs(folder / "other"), folder / "other run")
        run = other.make(other.folder)
    else:  # the only one in the table: beside one that is not
        shifts = import_place("shifts:SHIFTS")
        run = run_dataset(shifts, *trial.inputs, out=folder / "other run", images=range(2), progress=False)
    write_report([trial.run, run], folder / "r.html")
    text = (folder / "r.html").read_text()
    for section in make_report([trial.run, run]).sections:
        assert f'<h1 id="{section.kind}">' in text
    write_report([trial.run, run], folder / "r.json")
    assert set(json.loads((folder / "r.json").read_text())) == {trial.name, run.guarantee.name}


def try_export(trial: Trial, folder: Path) -> None:
    has_maps = any(column.arrow == "binary" for column in trial.guarantee.schema.stored)
    is_log = any(column.cohen is not None for column in trial.guarantee.schema.columns)
    for kind in FORMATS:
        pprs("export", trial.folder, "--format", kind, "--out", folder / f"rows.{kind}")
        assert (folder / f"rows.{kind}").stat().st_size > 50
        if kind in ("parquet", "json") or not (has_maps or is_log):
            assert trial.rows(open_run(folder / f"rows.{kind}")) == trial.rows()


def try_open_run(trial: Trial, folder: Path) -> None:
    run = trial.run
    assert run.settings.kind == trial.name
    assert len(run.rows()) == len(run)
    assert run.failures() == []
    names = [column.name for column in trial.guarantee.schema.columns]
    assert run.to_arrow().column_names[: len(names)] == names
    assert list(run.to_pandas()["idx"]) == [row.idx for row in run.iter_rows()]
    data = trial.guarantee.load(*trial.inputs).data
    assert list(run.to_pandas()["name"]) == [data.name_of(row.idx) for row in run.iter_rows()]


def try_card(trial: Trial, folder: Path) -> None:
    card = make_card([trial.run], replay=2)
    assert all("verified: " in metric["args"]["verification"] for metric in card.results[0]["metrics"])
    assert card.results[0]["metrics"]
    pprs("card", trial.folder, "--out", folder / "card.md")


def try_doctor(trial: Trial, folder: Path) -> None:
    assert trial.guarantee.examination is not None, "there is no examination"
    assert str(import_place(trial.guarantee.examination)(trial.run))
    assert pprs("doctor", trial.folder).stdout.strip()


def try_app(trial: Trial, folder: Path) -> None:
    page = (Path(import_place("pprs.app:__file__")).parent / "page.py").read_text()
    assert f'gr.Tab("{trial.case.tab}"' in page


CAPABILITIES: dict[str, Callable[[Trial, Path], None]] = {
    "worker processes": try_workers,
    "Ray": try_ray,
    "several machines at one url": try_machines,
    "a folder": try_folder,
    "a url": try_url,
    "resuming after a kill": try_kill,
    "resuming after Ctrl-C": try_interrupt,
    "a budget": try_budget,
    "a choice of inputs": try_selection,
    "a choice of labels": try_labels,
    "pixels of the file": try_pixels,
    "engine options": try_engine,
    "progress": try_progress,
    "failures": try_failures,
    "verify": try_verify,
    "verify with a replay": try_replay,
    "report": try_report,
    "one report with other kinds": try_mixed_report,
    "export": try_export,
    "open_run": try_open_run,
    "card": try_card,
    "doctor": try_doctor,
    "the app": try_app,
}


# ---- the page


def read_holes() -> dict[tuple[str, str], str]:
    """Return the reasons that the page gives, by guarantee and capability."""
    lines = re.findall(r"^- \*\*(.+?), `(.+?)`\*\*: (.+)$", PAGE.read_text(encoding="utf-8"), re.M)
    return {(guarantee, capability): reason for capability, guarantee, reason in lines}


def make_table(holes: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the table that the page should have."""
    heads = ["", *(f"`{name}`" for name in GUARANTEES)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for capability in CAPABILITIES:
        cells = ["no" if (name, capability) in holes else "yes" for name in GUARANTEES]
        lines.append(f"| {' | '.join([capability, *cells])} |")
    return lines


def test_the_page_has_the_table_of_the_guarantees() -> None:
    expected = "\n".join(make_table(read_holes()))
    assert expected in PAGE.read_text(encoding="utf-8"), f"docs/guarantees.md needs this table:\n{expected}"


def test_every_line_of_the_page_is_about_a_cell() -> None:
    unknown = [cell for cell in read_holes() if cell[0] not in GUARANTEES or cell[1] not in CAPABILITIES]
    assert unknown == []
    assert all(len(reason) > 20 for reason in read_holes().values()), "a hole needs a reason"


def test_every_guarantee_has_a_case() -> None:
    assert set(CASES) == set(GUARANTEES), "add an entry to CASES, and a column to docs/guarantees.md"


# ---- the matrix


def list_cells() -> list[Any]:
    return [
        pytest.param(guarantee, name, id=f"{guarantee}-{name.replace(' ', '_')}", marks=marks_of(name))
        for guarantee in GUARANTEES
        for name in CAPABILITIES
    ]


def marks_of(capability: str) -> Sequence[pytest.MarkDecorator]:
    return (pytest.mark.ray, pytest.mark.timeout(900)) if capability == "Ray" else (pytest.mark.slow,)


@pytest.fixture(scope="session")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trial]:
    """Make one run of each guarantee."""
    made: dict[str, Trial] = {}

    def find(name: str) -> Trial:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            trial = Trial(name, CASES[name], CASES[name].make_inputs(folder), folder / "run")
            trial.make(trial.folder)
            made[name] = trial
        return made[name]

    return find


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    with start_cluster() as address:
        yield address


@pytest.mark.parametrize(("guarantee", "capability"), list_cells())
def test_capability(
    guarantee: str, capability: str, trials: Callable[[str], Trial], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if capability == "Ray":
        request.getfixturevalue("cluster")
    trial, run_cell = trials(guarantee), CAPABILITIES[capability]
    reason = read_holes().get((guarantee, capability))
    if reason is None:
        run_cell(trial, tmp_path)
        return
    # Refused with a message, or absent. A cell that works needs no excuse.
    with pytest.raises((PprsError, AssertionError, SystemExit)):
        run_cell(trial, tmp_path)
