"""Runs and exported rows from somebody else: wrong values are errors with a location, and nothing exhausts memory."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from helpers import pprs
from PIL import Image, ImageFile

from pprs import PprsError, Run, open_run, verify_run, write_report
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.runs import FILE, Row, RunSettings, RunWriter, StoredRun, database, read_frame, size, store
from pprs.runs.columns import Schema
from pprs.runs.export import FORMATS, export
from pprs.smoothing.bounds import clopper_pearson_lower

# What 99 of 100 votes certify at alpha = 0.01 under Gaussian noise of sigma 0.5.
P_LOWER = clopper_pearson_lower(99, 100, 0.01)
RADIUS = Gaussian(0.5).radius(P_LOWER, 64)
SETTINGS = RunSettings(
    data_fingerprint="1f", num_classes=2, noise_text="gaussian:sigma=0.5", partition_text="none", n0=10, n=100,
    alpha=0.01, seed=0,
)  # fmt: skip
ROWS = [Row(i, 1, 1, 1, RADIUS, P_LOWER, (1, 99), None, None, 0.1) for i in range(3)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunWriter(tmp_path / "run", SETTINGS) as writer:
        writer.add([(row, png(8, 8)) for row in ROWS])
    return tmp_path / "run"


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


def change(run: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(run / FILE)) as db:
        db.execute(statement, values)
        db.commit()


# ---- exported rows


def write_exported(path: Path, column: str, value: object) -> None:
    """Export the rows with a wrong value in the second."""
    kind = path.suffix.lstrip(".")
    export(ROWS, SETTINGS, "json" if kind == "parquet" else kind, path)
    if kind in ("json", "parquet"):
        content = json.loads(path.read_text())
        content["rows"][1][column] = value
        path.write_text(json.dumps(content))
        if kind == "parquet":
            rows = [{**row, column: str(row[column])} for row in content["rows"]]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return
    mark = "\t" if kind == "tsv" else ","
    lines = [line.split(mark) for line in path.read_text().replace('"[1, 99]"', "[1 99]").splitlines()]
    lines[2][lines[0].index(column)] = str(value)
    path.write_text("".join(mark.join(line) + "\n" for line in lines).replace("[1 99]", '"[1, 99]"'))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("column", "value"),
    [("radius", "large"), ("label", "cat"), ("idx", "1.5"), ("predict", "1e400"), ("radius", "0:30")],
)
def test_text_in_a_numeric_column_is_an_error_with_its_location(
    tmp_path: Path, kind: str, column: str, value: str
) -> None:
    path = tmp_path / f"rows.{kind}"
    write_exported(path, column, value)
    with pytest.raises(PprsError, match=rf'row 2, column "{column}": .*{value}.* is not an? '):
        open_run(path)
    assert f'row 2, column "{column}"' in pprs("report", path, "--out", tmp_path / "r.html", code=1).stderr


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize("value", ["many", "[1, 2", '["a"]', "[1, -2]", "7"])
def test_counts_that_are_no_votes(tmp_path: Path, kind: str, value: str) -> None:
    export(ROWS, SETTINGS, kind, tmp_path / f"rows.{kind}")
    old, new = ('"[1, 99]"', value.replace('"', '""')) if kind == "csv" else ("[1, 99]", value.replace('"', r"\""))
    text = (tmp_path / f"rows.{kind}").read_text().replace(old, f'"{new}"' if kind == "csv" else new)
    (tmp_path / f"rows.{kind}").write_text(text)
    with pytest.raises(PprsError, match=r'row 1, column "counts": .* is not a list of numbers'):
        open_run(tmp_path / f"rows.{kind}")


def test_a_wrong_setting_in_exported_rows(tmp_path: Path) -> None:
    export(ROWS, SETTINGS, "csv", tmp_path / "rows.csv")
    text = (tmp_path / "rows.csv").read_text()
    (tmp_path / "rows.csv").write_text(text.replace(",100,0.01,", ",100,tiny,"))
    with pytest.raises(PprsError, match=r"rows.csv.*the setting \"alpha\" is 'tiny', but must be a number"):
        open_run(tmp_path / "rows.csv")


def test_large_integers_are_exact(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(f"idx\tlabel\tpredict\tradius\ttime\n{2**53 + 1}\t1\t1.0\t0.5\t1:01:01.5\n")
    (row,) = open_run(tmp_path / "a.tsv").rows()
    assert (row.idx, row.prediction, row.seconds) == (2**53 + 1, 1, 3661.5)


# ---- stored runs


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("radius", "large", "\"radius\" is 'large', which is not a finite number"),
        ("radius", float("inf"), '"radius" is inf'),
        ("label", "cat", "\"label\" is 'cat', which is not an integer"),
        ("label", 0.5, '"label" is 0.5'),
        ("counts", "[1, 2, 3]", '"counts" holds 3 numbers, but there are 2 classes'),
        ("counts", "none", "\"counts\" is 'none', which is not a list of numbers"),
        ("counts", "[" * 5000, "which is not a list of numbers"),
    ],
)
def test_a_wrong_value_in_a_row(run: Path, column: str, value: object, problem: str) -> None:
    change(run, f"UPDATE rows SET {column} = ? WHERE idx = 1", value)
    with pytest.raises(PprsError, match="the row of image 1 is damaged") as error:
        read_frame(run)
    assert problem in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 10**13), ("n", 0), ("n0", -1), ("n", "100x"), ("num_classes", 10**9), ("alpha", 2), ("seed", -1),
        ("seed", 0.5), ("n", float("nan")), ("noise", 3), ("partition", "x" * 10**6), ("class_names", [1, 2]),
        ("autocast", "yes"), ("n", True),
    ],
)  # fmt: skip
def test_a_setting_out_of_range(run: Path, key: str, value: object) -> None:
    change(run, "UPDATE settings SET value = ? WHERE key = ?", json.dumps(value), key)
    with pytest.raises(PprsError, match=f'the setting "{key}" is .*, but must be') as error:
        open_run(run)
    assert len(str(error.value)) < 300


def test_a_setting_that_is_not_json(run: Path) -> None:
    change(run, "UPDATE settings SET value = 'oops' WHERE key = 'n'")
    with pytest.raises(PprsError, match="the setting 'n' is not JSON"):
        open_run(run)


@pytest.mark.parametrize("text", ["tv:weight=0.1,iterations=2000000000", "slic/shifts:k=2000000000"])
def test_partitions_with_options_that_take_any_amount_of_memory(text: str) -> None:
    with pytest.raises(PprsError, match="must be an integer of at least 1 and at most 10+, not 2000000000"):
        parse_partition(text)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW endless AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
        "CREATE TRIGGER more AFTER INSERT ON rows BEGIN DELETE FROM settings; END",
        "ALTER TABLE rows ADD COLUMN p_other TEXT GENERATED ALWAYS AS (hex(zeroblob(1000000)))",
    ],
)
def test_a_file_that_computes_its_values_is_refused(run: Path, statement: str) -> None:
    change(run, statement)
    for opening in (open_run, lambda folder: RunWriter(folder, SETTINGS)):
        with pytest.raises(PprsError, match="computed instead of stored"):
            opening(run)


def test_a_very_large_value_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MAX_VALUE_BYTES", 10_000)
    assert len(open_run(run).rows()) == 3
    change(run, "UPDATE rows SET counts = ? WHERE idx = 1", json.dumps([0] * 10_000))
    with pytest.raises(PprsError, match=r"too big. A value takes more than"):
        open_run(run).rows()


def test_a_failure_with_a_wrong_index(run: Path) -> None:
    change(run, "DROP TABLE failed")
    change(run, "CREATE TABLE failed (idx, label, error)")
    change(run, "INSERT INTO failed VALUES ('seven', NULL, 'why')")
    with pytest.raises(PprsError, match="the failed image .*'seven'.* its key is no index"):
        open_run(run).failures()


# ---- many rows


def limit_memory(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    monkeypatch.setattr(size, "usable_memory", lambda: allowed)


@pytest.mark.parametrize("table", ["rows", "failed", "fair_order"])
def test_a_run_with_too_many_rows_is_refused_before_they_are_read(
    run: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunWriter(run, SETTINGS) as writer:
        writer.set_fair_order([0, 1, 2])
    limit_memory(monkeypatch, 2**21)
    assert len(open_run(run).rows()) == 3
    numbers = "WITH RECURSIVE c(x) AS (SELECT 10 UNION ALL SELECT x + 1 FROM c WHERE x < 999)"
    values = {
        "rows": "idx, prediction, selected, radius, p_lower, counts, seconds) SELECT x, 1, 1, 0, 0, '[]', 0",
        "failed": "idx, error) SELECT x, ''",
        "fair_order": "place, idx) SELECT x, x",
    }
    change(run, f"{numbers} INSERT INTO {table} ({values[table]} FROM c")
    monkeypatch.setattr(Schema, "from_sql", lambda *_: pytest.fail("a row was read"))
    expected = r"run holds 99\d rows, which take about 0.0 GB of memory, but at most half of this machine's"
    uses = (StoredRun.rows, StoredRun.outcomes, Run.to_arrow, read_frame, verify_run)
    for use in (*uses, lambda run: write_report([run], "r.html")):
        with pytest.raises(PprsError, match=expected):
            use(open_run(run))
    assert "more memory" in pprs("verify", run, code=2).stderr


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "parquet"])
def test_exported_rows_that_take_too_much_memory_are_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"rows.{kind}"
    rows = [replace(ROWS[0], idx=i) for i in range(1000)]
    export(rows, SETTINGS, kind, path)
    limit_memory(monkeypatch, 50 * 10**6)
    assert len(open_run(path)) == 1000
    limit_memory(monkeypatch, 5 * 10**6)
    with pytest.raises(PprsError, match=rf"rows.{kind} holds .* of memory, but at most half of this machine's, 0.0 GB"):
        open_run(path)


def test_a_small_parquet_file_of_many_rows_is_refused_before_it_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 10**6
    table = pyarrow.table({name: pyarrow.nulls(count, pyarrow.int64()) for name in ("idx", "label", "predict")})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    assert (tmp_path / "rows.parquet").stat().st_size < 10_000
    limit_memory(monkeypatch, 10**9)
    monkeypatch.setattr(pyarrow.parquet, "read_table", lambda *_, **__: pytest.fail("the rows were read"))
    with pytest.raises(PprsError, match=r"holds 1,000,000 rows, which take about 8.0 GB"):
        open_run(tmp_path / "rows.parquet")


def test_a_long_text_that_many_rows_repeat_is_refused_before_it_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indices = pyarrow.array([0] * 2000, pyarrow.int32())
    table = pyarrow.table(
        {
            **{name: [1.0] * 2000 for name in ("predict", "radius")},
            "idx": [float(i) for i in range(2000)],
            "model": pyarrow.DictionaryArray.from_arrays(indices, ["x" * 10**6]),
            "unknown": pyarrow.DictionaryArray.from_arrays(indices, ["x" * 10**6]),
        }
    )
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, path)
    limit_memory(monkeypatch, 10**9)
    with pytest.raises(PprsError, match=r"holds 2,000 rows, which take about 2.0 GB"):
        open_run(path)
    pyarrow.parquet.write_table(table.drop_columns(["model"]), path)
    assert len(open_run(path)) == 2000


def test_a_nested_column_of_a_parquet_file_is_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"idx": [0], "label": [[1, 2]], "predict": [1], "radius": [0.5]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(PprsError, match='the column "label" holds list'):
        open_run(tmp_path / "rows.parquet")


# ---- pictures


def test_large_and_many_thumbnails_are_not_read(run: Path) -> None:
    change(run, "UPDATE pictures SET png = zeroblob(?) WHERE idx = 0", store.MAX_THUMBNAIL_BYTES + 1)
    change(run, "UPDATE pictures SET png = 'text' WHERE idx = 1")
    assert list(open_run(run).thumbnails()) == [2]
    for index in range(100, 200):
        change(run, "INSERT INTO pictures VALUES (?, ?)", index, b"png")
    assert len(open_run(run).thumbnails()) == store.MAX_THUMBNAILS


def test_large_thumbnails_are_not_written(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", SETTINGS) as writer:
        writer.add([(ROWS[0], bytes(store.MAX_THUMBNAIL_BYTES + 1)), (ROWS[1], b"png")])
        assert list(writer.file.thumbnails()) == [1]


def test_pictures_with_too_many_pixels_are_not_decoded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = png(4000, 4000)
    assert len(bomb) < 30_000
    change(run, "UPDATE pictures SET png = ? WHERE idx = 0", bomb)
    change(run, "UPDATE pictures SET png = ? WHERE idx = 1", b"no picture")
    decoded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: (decoded.append(image.size), load(image))[1])
    write_report([run], run.parent / "r.html")
    page = " ".join((run.parent / "r.html").read_text().split())
    assert "too large or damaged are not shown: image 0, 1." in page
    assert "image 2" in page
    assert set(decoded) == {(8, 8)}
