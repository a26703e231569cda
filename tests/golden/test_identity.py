"""What must not change with the code: rows, stored runs, and the keys by which committed results are found.

`make identity` runs these tests and draws the committed figures again (`tests/golden/test_drawn.py`). The tests use the
command line and the files that it writes, so that they do not depend on modules. The few internals that they need are
imported in one place, below.

Rows are compared in every column but `seconds`. Votes, classes and reasons must be equal. Numbers that are computed
from them in floating point (radius, bounds, means) may differ by a relative 1e-12, since mathematical libraries round
the last digit differently. The network is committed, since training gives other weights on another processor.

To write the expected rows again after a change that is meant to change them: `PPRS_WRITE_IDENTITY=1 make identity`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
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

# All that these tests know of the package's internals.
from pprs.model import load_model
from pprs.model.base import Model, Normalised, Restricted
from pprs.partition import parse_partition
from pprs.reproduction import read_plan
from pprs.reproduction.former_rules import resolve_by
from pprs.reproduction.plan import Cell, Line

HERE = Path(__file__).parent / "identity"
ROWS, NETWORK = HERE / "rows.json", "digits.safetensors"
RESULTS = HERE.parents[2] / "docs" / "results"
FLOATS = ("radius", "p_lower", "p_upper", "mean_segments", "mean_segment_size")
NEAR, TINY = 1e-12, 1e-14  # a radius near 0 is the difference of two larger numbers
WRITE = "PPRS_WRITE_IDENTITY"

BASE = [
    "--model", NETWORK, "--data", "builtin:mnist5k", "--sigma", 0.5, "--n0", 20, "--n", 400, "--engine", "torch",
    "--arithmetic", "real",
]  # fmt: skip
# The options that followed from the noise when the expected rows were written. The rules for them may change, and these
# rows must not.
SOFT = "slic:n_segments=9,compactness=0.297,blur=5,iterations=2/soft:near=12.0,guide=0.962"
RESOLVED = {
    "slic": "slic:n_segments=29,compactness=0.212,blur=5,iterations=2",
    "slic/soft/shifts:k=2": f"{SOFT}/shifts:k=2",
    "felzenszwalb": "felzenszwalb:scale=10.6,min_size=25,blur=5",
    "quickshift": "quickshift:kernel_size=2.64,max_dist=9.0,ratio=0.56,blur=7",
}
# Settings and columns that were added after the first expected rows were written. The old rows lack them.
ADDED_SETTINGS = {"bit_depth": None, "arithmetic": "real", "pixels": "network"}
ADDED_COLUMNS = ("shape", "file_shape", "levels", "moved", "image_digest", "name")
PARTITIONS = ("none", "blur:size=3", "grid:size=4", "slic", "slic/soft/shifts:k=2", "felzenszwalb", "quickshift")
NOISES = ("gaussian", "exponential", "powerlaw")
STOPS = (None, "radius:0.25,0.5", "width:0.1")
# Starting a worker takes longer than its work here. So it is given means of partitions, each of which it runs.
MEANS = ("none", "blur:size=3+grid:size=4+slic", "slic/soft/shifts:k=2+felzenszwalb+quickshift")


def certify_words(cell: list[object]) -> list[object]:
    """The command of a cell, with plain smoothing unless the cell has a partition, and with the options of the rows."""
    words = ["certify", *BASE, "--partition", "none", *cell]
    for i in (i for i, word in enumerate(words) if words[i - 1] == "--partition"):
        words[i] = "+".join(RESOLVED.get(part, part) for part in str(words[i]).split("+"))
    return words


def _cell(partition: str, noise: str, stop: str | None, *where: object) -> list[object]:
    rule = [] if stop is None else ["--stop", stop]
    return ["--limit", 20, "--partition", partition, "--noise", noise, *rule, *where]


def _cells() -> dict[str, list[object]]:
    """Arguments to add to BASE, by name. Of any two options, every pair of values occurs in at least one cell."""
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
        # It always ends at the same sample, as long as the number of threads is the same.
        ["--limit", 20, "--stop", "width:0.1", "--budget", "4000samples", "--threads", 1],
        ["--limit", 100, "--stop", "abstain", "--target-accuracy-error", 0.2],
        ["--limit", 4, "--n", 8000, "--stop", "width:0.02"],  # checks become rarer as votes accumulate
        ["--limit", 4, "--n", 8000, "--stop", "radius:0.25,0.5", "--bound", "two-sided", "--partition", "blur:size=3"],
    ]
    exact = [
        ["--limit", 10, "--partition", partition, *stop, "--threads", 2, "--arithmetic", "exact"]
        for partition, stop in zip(
            PARTITIONS, itertools.cycle(([], ["--stop", "radius:0.25,0.5"], ["--bound", "two-sided"])), strict=False
        )
    ]
    exact.append(["--limit", 10, "--partition", MEANS[1], "--workers", 2, "--split-samples", "--arithmetic", "exact"])
    return {" ".join(map(str, cell)): cell for cell in [*local, *elsewhere, *others, *exact]}


CELLS = _cells()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the network, in which to run commands. A run records the network's file name."""
    shutil.copy(HERE / NETWORK, tmp_path)
    return tmp_path


def stored(run: Path) -> dict[str, Any]:
    """The contents of a run's file, without times."""
    with closing(sqlite3.connect(run / "run.sqlite")) as db:
        settings = {key: json.loads(value) for key, value in db.execute("SELECT key, value FROM settings")}
        cursor = db.execute("SELECT * FROM rows ORDER BY idx")
        names = [name for name, *_ in cursor.description]
        rows = [dict(zip(names, values, strict=True)) for values in cursor]
    for row in rows:
        del row["seconds"]
        row["counts"] = json.loads(row["counts"])
    return {"settings": settings, "rows": rows}


def differences(expected: list[dict[str, Any]], actual: list[dict[str, Any]]) -> list[str]:
    """One line per value that differs. Columns that were added since may be missing in the expected rows."""
    ours, theirs = ({row["idx"]: row for row in rows} for rows in (expected, actual))
    lines = [f"image {i}: missing" for i in sorted(ours.keys() - theirs.keys())]
    lines += [f"image {i}: not expected" for i in sorted(theirs.keys() - ours.keys())]
    for i in sorted(ours.keys() & theirs.keys()):
        for column in dict.fromkeys([*ours[i], *theirs[i]]):
            if column in ADDED_COLUMNS and column not in ours[i]:
                continue
            a, b = (row.get(column, "no such column") for row in (ours[i], theirs[i]))
            near = column in FLOATS and isinstance(a, float) and isinstance(b, float)
            if not (math.isclose(a, b, rel_tol=NEAR, abs_tol=TINY) if near else type(a) is type(b) and a == b):
                lines.append(f"image {i}, {column}: expected {a!r}, is {b!r}")
    return lines


def expected_cells() -> dict[str, Any]:
    return json.loads(ROWS.read_text()) if ROWS.is_file() else {}


def write_expected(name: str, run: dict[str, Any]) -> None:
    """Write one row per line, so that a change can be read."""
    with FileLock(Path(tempfile.gettempdir()) / "pprs-identity.lock"):
        cells = {**expected_cells(), name: run}
        lines = []
        for cell in (cell for cell in CELLS if cell in cells):
            rows = ",\n".join(json.dumps(row) for row in cells[cell]["rows"])
            settings = json.dumps(cells[cell]["settings"])
            lines.append(f'{json.dumps(cell)}: {{"settings": {settings}, "rows": [\n{rows}\n]}}')
        ROWS.write_text("{" + ",\n".join(lines) + "}\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS, ids=list(CELLS))
def test_rows(name: str, folder: Path) -> None:
    pprs(*certify_words(CELLS[name]), "--out", "run", cwd=folder)
    run = stored(folder / "run")
    if os.environ.get(WRITE):
        write_expected(name, run)
    expected = expected_cells()[name]
    added = ADDED_SETTINGS | {"bit_depth": 8 if expected["settings"].get("arithmetic") == "exact" else None}
    assert run["settings"] == added | expected["settings"]
    lines = differences(expected["rows"], run["rows"])
    assert not lines, f"{len(lines)} values differ\n" + "\n".join(lines)


@pytest.mark.skipif(WRITE in os.environ, reason="they are being written")
def test_expected_rows_are_of_all_kinds() -> None:
    """Otherwise the comparison would cover little."""
    cells = expected_cells()
    assert list(cells) == list(CELLS)
    rows = [row for cell in cells.values() for row in cell["rows"]]
    assert {row["stopped"] for row in rows} == {"n", "decided", "width", "hopeless", "budget"}
    abstained = sum(row["prediction"] is None for row in rows)
    assert {row.get("levels") for row in rows} == {None, 255}
    assert 0.2 < abstained / len(rows) < 0.6
    assert sum(row["prediction"] == row["label"] for row in rows) > 0.4 * len(rows)


# Runs of earlier versions with the settings of a cell. In old-run, seven images are done, a budget left two undecided,
# and one failed. In older-run, which is older than stop rules, four are done. See tests/golden/identity/README.md.
OLD, OLDER = _cell("slic", "powerlaw", "width:0.1"), _cell("grid:size=4", "exponential", None)


def expected_of(cell: list[object]) -> list[dict[str, Any]]:
    name = next(name for name, arguments in CELLS.items() if arguments[: len(cell)] == cell)
    return expected_cells()[name]["rows"]  # type: ignore[no-any-return]


def copy_run(name: str, folder: Path) -> list[dict[str, Any]]:
    """Copy a run of an earlier version, and return its rows."""
    (folder / "run").mkdir()
    shutil.copy(HERE / name / "run.sqlite", folder / "run")
    return stored(folder / "run")["rows"]  # type: ignore[no-any-return]


def export_rows(folder: Path) -> list[dict[str, Any]]:
    """Report and export a run, check that this does not change it, and return the exported rows."""
    before = (folder / "run" / "run.sqlite").read_bytes()
    pprs("report", "run", "--out", "r.html", cwd=folder)
    exported = json.loads(pprs("export", "run", "--format", "json", cwd=folder).stdout)
    assert (folder / "run" / "run.sqlite").read_bytes() == before
    # A setting that a run of an earlier version lacks is exported with the value that it implicitly had.
    assert exported["settings"] == {"stop": None, **ADDED_SETTINGS, **stored(folder / "run")["settings"]}
    return exported["rows"]  # type: ignore[no-any-return]


def test_a_run_of_an_earlier_version_opens(folder: Path) -> None:
    before, rows = copy_run("old-run", folder), export_rows(folder)
    assert [row["stopped"] for row in rows] == [*["width"] * 6, "budget", "width", "budget", "failed"]
    assert [json.loads(row["counts"]) for row in rows[:-1]] == [row["counts"] for row in before]
    assert not differences(expected_of(OLD)[:6], before[:6])


def test_a_run_of_an_earlier_version_is_resumed(folder: Path) -> None:
    before = copy_run("old-run", folder)
    result = pprs(*certify_words(OLD), "--out", "run", cwd=folder)
    assert "resuming: 7 of 20 images are done in run (2 more were started)" in result.stdout
    rows = stored(folder / "run")["rows"]
    kept = [{name: rows[i][name] for name in before[0]} for i in (0, 1, 2, 3, 4, 5, 7)]
    assert kept == [row for row in before if row["stopped"] == "width"]
    assert not differences(expected_of(OLD), rows)
    with closing(sqlite3.connect(folder / "run" / "run.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM failed").fetchone() == (0,)


@pytest.mark.parametrize("missing", [[], ["p_upper"]], ids=["", "without bounds of other classes"])
def test_a_run_older_than_stop_rules(folder: Path, missing: list[str]) -> None:
    before = copy_run("older-run", folder)
    assert "stopped" not in before[0]
    with closing(sqlite3.connect(folder / "run" / "run.sqlite")) as db:
        for column in missing:
            db.execute(f"ALTER TABLE rows DROP COLUMN {column}")
    assert [json.loads(row["counts"]) for row in export_rows(folder)] == [row["counts"] for row in before]
    pprs(*certify_words(OLDER), "--out", "run", cwd=folder)
    rows = stored(folder / "run")["rows"]
    assert [{name: row[name] for name in (*before[0], "stopped")} for row in rows[:4]] == [
        {**row, "stopped": "n"} for row in before
    ]
    assert not differences(expected_of(OLDER), rows)


def test_a_run_with_other_settings_is_left_alone(folder: Path) -> None:
    copy_run("old-run", folder)
    before = (folder / "run" / "run.sqlite").read_bytes()
    result = pprs(*certify_words(OLD), "--seed", 1, "--n", 401, "--out", "run", cwd=folder, code=2)
    assert "  n: the run has 400, you asked for 401\n  seed: the run has 0, you asked for 1\n" in result.stderr
    assert (folder / "run" / "run.sqlite").read_bytes() == before


# Committed rows and networks are found by keys. keys.json has what is hashed, with the names of its fields. A renamed
# or added field would change every key, and no committed row would be found.
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
    current = read_plan(quick=plan == "quick")
    for name, pinned in KEYS[plan]["models"].items():
        assert current.models[name].to_key() == pinned["fields"], name
        assert current.model_key(name) == pinned["key"], name


@pytest.mark.parametrize("plan", KEYS)
def test_keys_of_rows(plan: str) -> None:
    current = read_plan(quick=plan == "quick")
    for name, pinned in KEYS[plan]["cells"].items():
        cell = Cell(**pinned["fields"])
        assert dataclasses.asdict(cell) == pinned["fields"], name
        assert (cell.name, current.cell_key(cell)) == (name, pinned["key"])


def test_committed_rows_have_these_keys() -> None:
    cells = json.loads((RESULTS / "manifest.json").read_text())["cells"]
    keys = {path.stem: set(pyarrow.parquet.read_table(path)["cell"].to_pylist()) for path in RESULTS.glob("*.parquet")}
    for name, pinned in KEYS["paper"]["cells"].items():
        key, fields = pinned["key"], pinned["fields"]
        assert cells[key]["name"] == name
        assert {field: cells[key][field] for field in fields} == fields, name
        assert key in keys[fields["data"]], name


def test_the_plan_names_the_rules_of_the_committed_rows() -> None:
    """Options that a plan leaves out followed the noise by rules that have changed since."""
    plan, checked = read_plan(), 0
    shapes = {"imagenet": (3, 224, 224), "cat": (3, 224, 224), "cifar10": (3, 32, 32)}
    for data in ("mnist", "fashion-mnist", "cifar10", "imagenet", "digits", "cat"):
        table = pyarrow.parquet.read_table(RESULTS / f"{data}.parquet", columns=["cell", "partition_text"])
        used = dict(zip(*(table[name].to_pylist() for name in ("cell", "partition_text")), strict=True))
        cells = json.loads((RESULTS / "manifest.json").read_text())["cells"]
        for key, partition in used.items():
            cell = cells[key]
            method = plan.methods.get(cell["method"])
            tried = method.best_of if method and method.best_of and plan.data[data].training else (cell["partition"],)
            shape = shapes.get(data, (1, 28, 28))
            resolved = [resolve_by(plan.rules, parse_partition(text), cell["sigma"], shape) for text in tried]
            assert partition in [str(p or "none") for p in resolved], (data, cell)
            checked += "slic" in partition
    assert checked > 100


def test_keys_name_other_rules_than_the_former() -> None:
    former = read_plan()
    present = dataclasses.replace(former, rules="radius")
    for name in ("slic", "rs"):
        cell = former.cell(former.experiments["curves"], "mnist", Line(name), 0.25)
        assert (former.cell_key(cell) == present.cell_key(cell)) == (name == "rs")


def test_a_key_is_a_hash_of_what_rows_depend_on() -> None:
    """Everything that is hashed, written out."""
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
    """Digests cover the names of weights and buffers, so renaming an attribute would change them."""
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
