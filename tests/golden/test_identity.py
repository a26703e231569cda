"""What must stay as it is when the code changes: rows, runs on disk, and the keys that committed results go by.

`make identity` runs this and redraws the committed figures (`tests/golden/test_drawn.py`). The tests speak to the
package through its command line and the files that it writes, so that they outlive any module; what they need of its
inside is imported in one place, below.

Rows are compared in every column but `seconds`. Votes, classes and reasons must be equal. What is computed from them
in floating point (radius, bounds, means) may differ by 1e-12 of its size: other libraries of mathematics round the last
digit otherwise. The network is committed, since training gives other weights on another processor.

To write the expected rows anew, after a change that is meant to change them: `PPRS_WRITE_IDENTITY=1 make identity`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import torch
from filelock import FileLock
from helpers import pprs

# The package's inside: all that these tests know of it.
from pprs.model import load_model
from pprs.model.base import Model, Normalised, Restricted
from pprs.reproduction import read_plan
from pprs.reproduction.plan import Cell

HERE = Path(__file__).parent / "identity"
ROWS, NETWORK = HERE / "rows.json", "digits.safetensors"
RESULTS = HERE.parents[2] / "docs" / "results"
FLOATS = ("radius", "p_lower", "p_upper", "mean_segments", "mean_segment_size")
NEAR = 1e-12
WRITE = "PPRS_WRITE_IDENTITY"

BASE = ["--model", NETWORK, "--data", "builtin:mnist5k", "--sigma", 0.5, "--n0", 20, "--n", 400, "--engine", "torch"]
PARTITIONS = ("none", "blur:size=3", "grid:size=4", "slic", "slic/soft/shifts:k=2", "felzenszwalb", "quickshift")
NOISES = ("gaussian", "exponential", "powerlaw")
STOPS = (None, "radius:0.25,0.5", "width:0.1")
# To start a worker takes longer than its work here. So it is given means of partitions: it runs each of them.
MEANS = ("none", "blur:size=3+grid:size=4+slic", "slic/soft/shifts:k=2+felzenszwalb+quickshift")


def _cell(partition: str, noise: str, stop: str | None, *where: object) -> list[object]:
    rule = [] if stop is None else ["--stop", stop]
    return ["--limit", 20, "--partition", partition, "--noise", noise, *rule, *where]


def _cells() -> dict[str, list[object]]:
    """By name, what is added to BASE: of any two choices, each pair of values occurs in a cell at least."""
    local = [
        _cell(partition, noise, STOPS[(i + j) % 3], "--threads", 2)
        for i, partition in enumerate(PARTITIONS)
        for j, noise in enumerate(NOISES)
    ]
    elsewhere = [
        _cell(MEANS[k], NOISES[(k + mode) % 3], STOPS[(2 * k + mode) % 3], "--workers", 2, *split)
        for mode, split in enumerate(([], ["--split-samples"]))
        for k in range(3)
    ]
    others: list[list[object]] = [
        ["--limit", 20, "--stop", "abstain"],
        ["--limit", 20, "--bound", "two-sided", "--partition", "slic"],
        ["--limit", 20, "--labels", "3,5,8"],
        # Where it ends is the same each time, as long as the number of threads is.
        ["--limit", 20, "--stop", "width:0.1", "--budget", "4000samples", "--threads", 1],
        ["--limit", 100, "--stop", "abstain", "--target-accuracy-error", 0.2],
        ["--limit", 4, "--n", 8000, "--stop", "width:0.02"],  # looks grow apart with the votes
        ["--limit", 4, "--n", 8000, "--stop", "radius:0.25,0.5", "--bound", "two-sided", "--partition", "blur:size=3"],
    ]
    return {" ".join(map(str, cell)): cell for cell in [*local, *elsewhere, *others]}


CELLS = _cells()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a command is run: with the network, which a run knows by its name."""
    shutil.copy(HERE / NETWORK, tmp_path)
    return tmp_path


def stored(run: Path) -> dict[str, Any]:
    """What a run's file holds, but for the time that it took."""
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        settings = {key: json.loads(value) for key, value in db.execute("SELECT key, value FROM settings")}
        found = db.execute("SELECT * FROM rows ORDER BY idx")
        names = [name for name, *_ in found.description]
        rows = [dict(zip(names, values, strict=True)) for values in found]
    for row in rows:
        del row["seconds"]
        row["counts"] = json.loads(row["counts"])
    return {"settings": settings, "rows": rows}


def differences(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[str]:
    """A line for each value that is another one."""
    ours, theirs = ({row["idx"]: row for row in rows} for rows in (expected, found))
    told = [f"image {i}: expected, and not there" for i in sorted(ours.keys() - theirs.keys())]
    told += [f"image {i}: there, and not expected" for i in sorted(theirs.keys() - ours.keys())]
    for i in sorted(ours.keys() & theirs.keys()):
        for column in dict.fromkeys([*ours[i], *theirs[i]]):
            a, b = (row.get(column, "no such column") for row in (ours[i], theirs[i]))
            near = column in FLOATS and isinstance(a, float) and isinstance(b, float)
            if not (math.isclose(a, b, rel_tol=NEAR) if near else type(a) is type(b) and a == b):
                told.append(f"image {i}, {column}: expected {a!r}, found {b!r}")
    return told


def expected_cells() -> dict[str, Any]:
    return json.loads(ROWS.read_text()) if ROWS.is_file() else {}


def write_expected(name: str, found: dict[str, Any]) -> None:
    """A row a line, so that a change can be read."""
    with FileLock(Path(tempfile.gettempdir()) / "pprs-identity.lock"):
        cells = {**expected_cells(), name: found}
        told = []
        for cell in (cell for cell in CELLS if cell in cells):
            rows = ",\n".join(json.dumps(row) for row in cells[cell]["rows"])
            settings = json.dumps(cells[cell]["settings"])
            told.append(f'{json.dumps(cell)}: {{"settings": {settings}, "rows": [\n{rows}\n]}}')
        ROWS.write_text("{" + ",\n".join(told) + "}\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS, ids=list(CELLS))
def test_rows(name: str, folder: Path) -> None:
    pprs("certify", *BASE, *CELLS[name], "--out", "run", cwd=folder)
    found = stored(folder / "run")
    if os.environ.get(WRITE):
        write_expected(name, found)
    expected = expected_cells()[name]
    assert found["settings"] == expected["settings"]
    told = differences(expected["rows"], found["rows"])
    assert not told, f"{len(told)} values differ\n" + "\n".join(told)


@pytest.mark.skipif(WRITE in os.environ, reason="they are being written")
def test_expected_rows_are_of_all_kinds() -> None:
    """Else the comparison would see little."""
    cells = expected_cells()
    assert list(cells) == list(CELLS)
    rows = [row for cell in cells.values() for row in cell["rows"]]
    assert {row["stopped"] for row in rows} == {"n", "decided", "width", "hopeless", "budget"}
    abstained = sum(row["prediction"] is None for row in rows)
    assert 0.2 < abstained / len(rows) < 0.6
    assert sum(row["prediction"] == row["label"] for row in rows) > 0.4 * len(rows)


# Runs of earlier versions, whose settings are those of a cell. In old-run seven images are done, a budget left two, and
# one failed; in older-run, from before there were rules to stop, four are done. See tests/golden/identity/README.md.
OLD, OLDER = _cell("slic", "powerlaw", "width:0.1"), _cell("grid:size=4", "exponential", None)


def expected_of(cell: list[object]) -> list[dict[str, Any]]:
    name = next(name for name, arguments in CELLS.items() if arguments[: len(cell)] == cell)
    return expected_cells()[name]["rows"]  # type: ignore[no-any-return]


def copied(name: str, folder: Path) -> list[dict[str, Any]]:
    """Its rows."""
    (folder / "run").mkdir()
    shutil.copy(HERE / name / "run.sqlite", folder / "run")
    return stored(folder / "run")["rows"]  # type: ignore[no-any-return]


def opened(folder: Path) -> list[dict[str, Any]]:
    """A run as reports and other tools see it, which leave it as it is."""
    before = (folder / "run" / "run.sqlite").read_bytes()
    pprs("report", "run", "--out", "r.html", cwd=folder)
    exported = json.loads(pprs("export", "run", "--format", "json", cwd=folder).stdout)
    assert (folder / "run" / "run.sqlite").read_bytes() == before
    # A setting that a run of an earlier version does not have is exported with the value that it had then.
    assert exported["settings"] == {"stop": None, **stored(folder / "run")["settings"]}
    return exported["rows"]  # type: ignore[no-any-return]


def test_a_run_of_an_earlier_version_opens(folder: Path) -> None:
    before, rows = copied("old-run", folder), opened(folder)
    assert [row["stopped"] for row in rows] == [*["width"] * 6, "budget", "width", "budget", "failed"]
    assert [json.loads(row["counts"]) for row in rows[:-1]] == [row["counts"] for row in before]
    assert not differences(expected_of(OLD)[:6], before[:6])


def test_a_run_of_an_earlier_version_is_gone_on_with(folder: Path) -> None:
    before = copied("old-run", folder)
    told = pprs("certify", *BASE, *OLD, "--out", "run", cwd=folder)
    assert "resuming: 7 of 20 images are done in run (2 more were started)" in told.stdout
    found = stored(folder / "run")["rows"]
    assert [found[i] for i in (0, 1, 2, 3, 4, 5, 7)] == [row for row in before if row["stopped"] == "width"]
    assert not differences(expected_of(OLD), found)
    with closing(sqlite3.connect(folder / "run" / "run.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM failed").fetchone() == (0,)


@pytest.mark.parametrize("missing", [[], ["p_upper"]], ids=["", "nor bounds of other classes"])
def test_a_run_from_before_there_were_rules_to_stop(folder: Path, missing: list[str]) -> None:
    before = copied("older-run", folder)
    assert "stopped" not in before[0]
    with closing(sqlite3.connect(folder / "run" / "run.sqlite")) as db:
        for column in missing:
            db.execute(f"ALTER TABLE rows DROP COLUMN {column}")
    assert [json.loads(row["counts"]) for row in opened(folder)] == [row["counts"] for row in before]
    pprs("certify", *BASE, *OLDER, "--out", "run", cwd=folder)
    found = stored(folder / "run")["rows"]
    assert found[:4] == [{**row, "stopped": "n"} for row in before]
    assert not differences(expected_of(OLDER), found)


def test_a_run_with_other_settings_is_left_alone(folder: Path) -> None:
    copied("old-run", folder)
    before = (folder / "run" / "run.sqlite").read_bytes()
    told = pprs("certify", *BASE, *OLD, "--seed", 1, "--n", 401, "--out", "run", cwd=folder, code=2)
    assert "  n: the run has 400, you asked for 401\n  seed: the run has 0, you asked for 1\n" in told.stderr
    assert (folder / "run" / "run.sqlite").read_bytes() == before


# What committed rows and networks go by: keys.json has what is hashed, with the names of its fields. A field that is
# renamed or added changes every key, and all committed rows would be stale.
KEYS = json.loads((HERE / "keys.json").read_text())
DIGESTS = {
    "committed": "910c71d560941d83",
    "committed, of two labels": "8c26077b60d10b05",
    "plain": "f185f38b6b688f0c",
    "normalised": "0ee94697dc7d8a5b",
    "flipped": "cdadc5c37ec36714",
    "restricted": "03d3703303fc2950",
    "fingerprint": "ab8f3c0b8fb426b2",
}


@pytest.mark.parametrize("plan", KEYS)
def test_keys_of_networks(plan: str) -> None:
    found = read_plan(quick=plan == "quick")
    assert found.models.keys() == KEYS[plan]["models"].keys()
    for name, pinned in KEYS[plan]["models"].items():
        assert dataclasses.asdict(found.models[name]) == pinned["fields"], name
        assert found.model_key(name) == pinned["key"], name


@pytest.mark.parametrize("plan", KEYS)
def test_keys_of_rows(plan: str) -> None:
    found = read_plan(quick=plan == "quick")
    for name, pinned in KEYS[plan]["cells"].items():
        cell = Cell(**pinned["fields"])
        assert dataclasses.asdict(cell) == pinned["fields"], name
        assert (cell.name, found.cell_key(cell)) == (name, pinned["key"])


def test_committed_rows_have_these_keys() -> None:
    cells = json.loads((RESULTS / "manifest.json").read_text())["cells"]
    keys = {path.stem: set(pyarrow.parquet.read_table(path)["cell"].to_pylist()) for path in RESULTS.glob("*.parquet")}
    for name, pinned in KEYS["paper"]["cells"].items():
        key, fields = pinned["key"], pinned["fields"]
        assert cells[key]["name"] == name
        assert {field: cells[key][field] for field in fields} == fields, name
        assert key in keys[fields["data"]], name


def test_a_key_is_a_hash_of_what_rows_depend_on() -> None:
    """All that goes into one, written out."""
    model = {
        "source": None, "engine": "onnxruntime", "data": "mnist", "arch": "resnet18", "width": 8, "epochs": 3,
        "shift": 2, "noise": None, "partition": "none",
    }  # fmt: skip
    cell = {
        "data": "mnist", "model": "mnist", "noise": "gaussian", "sigma": 0.25, "method": "blur", "partition": "gauss",
        "stop": "abstain",
    }  # fmt: skip
    tried = ["blur:size=3", "blur:size=5", "blur:size=7"]
    tried += [f"gauss:sigma={sigma}" for sigma in ("0.4", "0.5", "0.6", "0.8", "1", "1.3", "1.7")]
    key = hashed(model, "mnist", 0)
    assert key == KEYS["paper"]["models"]["mnist"]["key"]
    images = ["mnist", None, None, 200, 50, None, None]
    key = hashed(cell, key, images, [100, 1000, 0.001, 0], [tried, 100, 32])
    assert key == KEYS["paper"]["cells"]["mnist_mnist_gaussian-0.25_blur"]["key"]


def hashed(*what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]


def test_digests_of_networks() -> None:
    """Over the names of weights and buffers: those of attributes, too."""
    network = load_model(str(HERE / NETWORK))
    assert network.digest() == DIGESTS["committed"]
    assert network.restricted(["3", "5"]).digest() == DIGESTS["committed, of two labels"]
    net = torch.nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.5, -1.0], [2.0, 0.25]]))
        net.bias.copy_(torch.tensor([0.0, 1.0]))
    for name, module in {
        "plain": net,
        "normalised": Normalised(net, [0.5], [0.25]),
        "flipped": Normalised(net, [0.5, 0.5, 0.5], [0.25, 0.25, 0.25], flip=True),
        "restricted": Restricted(net, [1, 0]),
    }.items():
        assert Model(module, name).digest() == DIGESTS[name], name
    assert Model(net, "plain", fingerprint="weights").digest() == DIGESTS["fingerprint"]
