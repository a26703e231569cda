"""Forgeries of stored runs: every stored field is changed in turn, and rows are swapped, dropped, doubled and copied.

A run is read as a document: the rows of each table, with JSON and compressed maps expanded, so that a loop over the
document reaches every value. A table of expectations says what finds a change of each field. A field without a line
fails the test, so a field that is added to a store cannot be forgotten.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest

from pprs import PprsError, verify_run
from pprs.errors import DamagedError
from pprs.runs import FILE

Document = dict[str, Any]
Value = Any

# What finds a change of a field.
ALONE = "verify"  # without a replay. The model and the data are at hand
REPLAY = "replay"  # a replay of all rows
OPEN = "open"  # the run cannot be opened, with a message that names the field
UNCHECKED = "not checked"  # docs/verify.md says so, and why


class Format(Protocol):
    """Reads a run as a document, and writes it back."""

    def read(self, path: Path) -> Document: ...

    def write(self, path: Path, document: Document) -> None: ...


@dataclass(frozen=True)
class Json:
    """A value that is stored as JSON text."""

    value: Value


@dataclass(frozen=True)
class Packed:
    """A map of int32 that is stored compressed, behind a header with its size."""

    values: tuple[int, ...]
    head: bytes = b""


class SqliteFormat:
    """A run in a SQLite file: each table is a list of rows. A table of keys and values is a dictionary."""

    def __init__(self, file: str) -> None:
        self.file = file

    def read(self, path: Path) -> Document:
        document: Document = {}
        with closing(sqlite3.connect(path / self.file)) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
                cursor = db.execute(f"SELECT * FROM {table}")
                names = [column[0] for column in cursor.description]
                rows = [{name: _expand(value) for name, value in zip(names, row, strict=True)} for row in cursor]
                if names == ["key", "value"]:
                    document[table] = {row["key"]: row["value"] for row in rows}
                else:
                    document[table] = rows[0]["value"] if names == ["value"] else rows
        return document

    def write(self, path: Path, document: Document) -> None:
        with closing(sqlite3.connect(path / self.file)) as db, db:
            for table, content in document.items():
                names = [column[1] for column in db.execute(f"PRAGMA table_info({table})")]
                if names == ["key", "value"]:
                    content = [{"key": key, "value": value} for key, value in content.items()]
                elif names == ["value"]:
                    content = [{"value": content}]
                db.execute(f"DELETE FROM {table}")
                for row in content:
                    marks = ", ".join("?" * len(names))
                    db.execute(f"INSERT INTO {table} VALUES ({marks})", [_contract(row[name]) for name in names])


def _expand(value: Value) -> Value:
    if isinstance(value, bytes):
        head, end, content = value.partition(b"\n")
        with suppress(zlib.error):
            return Packed(tuple(np.frombuffer(zlib.decompress(content), "<i4").tolist()), head + end)
    if isinstance(value, str):
        with suppress(ValueError):
            return Json(json.loads(value))
    return value


def _contract(value: Value) -> Value:
    if isinstance(value, Packed):
        return value.head + zlib.compress(np.array(value.values, "<i4").tobytes())
    return json.dumps(value.value) if isinstance(value, Json) else value


class LinesFormat:
    """A run of JSON lines: the first one has the settings, and the others are rows."""

    def __init__(self, file: str) -> None:
        self.file = file

    def read(self, path: Path) -> Document:
        first, *rows = map(json.loads, (path / self.file).read_text(encoding="utf-8").splitlines())
        return {"header": first, "rows": rows}

    def write(self, path: Path, document: Document) -> None:
        lines = [json.dumps(value) + "\n" for value in (document["header"], *document["rows"])]
        (path / self.file).write_text("".join(lines), encoding="utf-8")


class JsonFormat:
    """A single JSON file. `path` is the file, and its content stands under "file"."""

    def read(self, path: Path) -> Document:
        return {"file": json.loads(path.read_text(encoding="utf-8"))}

    def write(self, path: Path, document: Document) -> None:
        path.write_text(json.dumps(document["file"]), encoding="utf-8")


# ---- changes


@dataclass(frozen=True)
class Forgery:
    """One change of a document: the field or table that it is about, what was done, and the changed document."""

    field: str
    what: str
    document: Document

    def __str__(self) -> str:
        return f"{self.field}: {self.what}"


def list_fields(document: Document) -> list[str]:
    """Return the names of all stored fields, such as rows.radius and binding.identity.torch."""
    return sorted({".".join(map(str, _field(path))) for path, _ in _leaves(document)})


def forge(
    document: Document, variants: Mapping[str, Value | Callable[[Value], Value]] | None = None, row: int = 0
) -> Iterator[Forgery]:
    """Yield the document with each field changed in turn, in one row of each table.

    `variants` gives further values for fields whose values must be chosen with care to be plausible: a value, or a
    function of the old one.
    """
    done = set[str]()
    for path, value in _leaves(document):
        field = ".".join(map(str, _field(path)))
        numbers = [part for part in path if isinstance(part, int)]
        if field in done or (numbers and numbers[0] != row and _count(document, path) > row):
            continue
        done.add(field)
        changes = list(_changes(value))
        if variants and field in variants:
            chosen = variants[field]
            changes.append(chosen(value) if callable(chosen) else chosen)
        for new in changes:
            changed = copy.deepcopy(document)
            _set(changed, path, new)
            yield Forgery(field, f"{_short(value)} -> {_short(new)}", changed)


GARBAGE = ("garbage", -1, 2**70, 1e400, [], {"a": 1}, None, b"\0")


def damage(document: Document) -> Iterator[Forgery]:
    """Yield the document with a value of another kind in each field."""
    done = set[str]()
    for path, value in _leaves(document):
        field = ".".join(map(str, _field(path)))
        if field in done:
            continue
        done.add(field)
        for new in GARBAGE:
            if isinstance(value, Json) or not isinstance(new, list | dict):
                changed = copy.deepcopy(document)
                _set(changed, path, Json(new) if isinstance(value, Json) and not isinstance(new, bytes) else new)
                yield Forgery(field, f"{_short(value)} -> {_short(new)}", changed)


def forge_rows(document: Document, other: Document, table: str = "rows", key: str = "idx") -> Iterator[Forgery]:
    """Yield the document with rows swapped, dropped, doubled, and copied from another run."""
    rows = document[table]

    def change(what: str, new: list[Document]) -> Forgery:
        return Forgery(f"{table} ({what})", f"{len(rows)} -> {len(new)} rows", {**copy.deepcopy(document), table: new})

    first, second, *rest = copy.deepcopy(rows)
    yield change("swapped", [{**second, key: first[key]}, {**first, key: second[key]}, *rest])
    dropped = change("dropped", [second, *rest])
    for name, content in dropped.document.items():  # with all that is stored beside the row
        if name != table and isinstance(content, list):
            dropped.document[name] = [entry for entry in content if entry.get(key, None) != first[key]]
    yield dropped
    yield change("doubled", [first, {**first, key: second[key]}, *rest])
    yield change("added", [*copy.deepcopy(rows), {**first, key: 10**6}])
    foreign = next(row for row in other[table] if row[key] == first[key])
    yield change("copied", [copy.deepcopy(foreign), second, *rest])


def _leaves(document: Document) -> Iterator[tuple[tuple[str | int, ...], Value]]:
    def walk(path: tuple[str | int, ...], value: Value) -> Iterator[tuple[tuple[str | int, ...], Value]]:
        inner = value.value if isinstance(value, Json) else value
        if isinstance(inner, dict) and inner:
            for key, part in inner.items():
                yield from walk((*path, key), part)
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            for i, part in enumerate(inner):
                yield from walk((*path, i), part)
        else:
            yield path, value

    for table, content in document.items():
        if content != []:
            yield from walk((table,), content)


def _field(path: tuple[str | int, ...]) -> list[str]:
    return [part for part in path if isinstance(part, str)]


def _count(document: Document, path: tuple[str | int, ...]) -> int:
    """The number of rows of the table that a path leads into."""
    value: Value = document
    for part in path:
        value = value.value if isinstance(value, Json) else value
        if isinstance(part, int):
            return len(value)
        value = value[part]
    return 0


def _set(document: Document, path: tuple[str | int, ...], new: Value) -> None:
    value: Value = document
    for part in path[:-1]:
        value = value[part].value if isinstance(value[part], Json) else value[part]
    value[path[-1]] = new


def _changes(value: Value) -> Iterator[Value]:
    """Plausible other values: what a forger would write, and not what damages the file."""
    if isinstance(value, Json):
        yield from map(Json, _changes(value.value))
    elif isinstance(value, Packed):
        values, most = value.values, max(value.values)
        yield replace(value, values=tuple(most - v if most - v >= 0 else v for v in values))
        yield replace(value, values=(values[0] + 1 if values[0] < most else values[0] - 1, *values[1:]))
    elif isinstance(value, bytes):
        middle = len(value) // 2
        yield value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        if value > 1:
            yield value - 1
    elif isinstance(value, float):
        yield value * 1.01 if value else 0.01
        yield value * 0.99 if value else 0.02
    elif isinstance(value, str):
        yield _other_text(value)
    elif isinstance(value, list):
        yield _other_list(value)
    elif value is None:
        yield 1
        yield "forged"
    elif isinstance(value, dict):
        yield {"forged": "forged"}


def _other_text(text: str) -> str:
    if text and all(c in "0123456789abcdef" for c in text):  # a digest
        return text[:-1] + ("0" if text[-1] != "0" else "1")
    return f"{text}-forged"


def _other_list(values: list[Value]) -> list[Value]:
    if not values:
        return [1]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values) and len(values) > 1:
        return [values[0] + 1, values[1] - 1 if values[1] else 1, *values[2:]]  # with the same sum where possible
    return [next(_changes(values[0])), *values[1:]]


def _short(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# ---- what finds them


@dataclass(frozen=True)
class Verdict:
    """What a verification of a forged run says. `error` is why the run could not be opened."""

    ok: bool
    text: str
    error: str | None = None


def judge(
    forgery: Forgery,
    original: Path,
    scratch: Path,
    form: Format,
    verify: Callable[[Path, bool], Verdict],
) -> tuple[str, str]:
    """Return what finds a forgery (`ALONE`, `REPLAY`, `OPEN` or `UNCHECKED`), and what was said.

    `verify(path, replay)` verifies a run, with its model and its data at hand, and all rows replayed or none.
    """
    scratch.mkdir(exist_ok=True)
    target = scratch / original.name
    shutil.rmtree(target, ignore_errors=True) if target.is_dir() else target.unlink(missing_ok=True)
    shutil.copytree(original, target) if original.is_dir() else shutil.copy(original, target)
    try:
        form.write(target, forgery.document)
    except (sqlite3.Error, OverflowError) as error:
        return OPEN, f"the file cannot hold it: {error}"
    text = ""
    for replay, word in ((False, ALONE), (True, REPLAY)):
        found = verify(target, replay)
        text = found.error or found.text
        if found.error is not None:
            return OPEN, text
        if not found.ok:
            return word, text
    return UNCHECKED, text


PAGE = Path(__file__).parents[1] / "docs" / "verify.md"


def documented(kind: str) -> set[str]:
    """Return the fields of a kind of run of which docs/verify.md says that nothing checks them.

    They are in code at the beginning of the items of the list below the heading "Fields of `pprs KIND`".
    """
    _, heading, rest = PAGE.read_text(encoding="utf-8").partition(f"### Fields of `pprs {kind}`")
    assert heading, f"docs/verify.md has no heading for the fields of {kind}"
    items = re.split(r"^- ", re.split(r"^#", rest, maxsplit=1, flags=re.M)[0], flags=re.M)[1:]
    return {field for item in items for field in re.findall(r"`([^`]+)`", item.partition(":")[0])}


def find_surprises(
    forgeries: Iterable[Forgery],
    expected: Mapping[str, str],
    judge_one: Callable[[Forgery], tuple[str, str]],
) -> list[str]:
    """Return each forgery that is found later than expected, and each field that is checked although it is listed.

    A forgery may be found earlier: by the type of a value, for example.
    """
    order = (OPEN, ALONE, REPLAY, UNCHECKED)
    surprises, missed = [], {field for field, word in expected.items() if word == UNCHECKED}
    for forgery in forgeries:
        word, text = judge_one(forgery)
        if word == UNCHECKED:
            missed.discard(forgery.field)
        if order.index(word) > order.index(expected[forgery.field]):
            surprises.append(f"{forgery}: {word} instead of {expected[forgery.field]}\n{text}")
    return surprises + [f"{field}: every change of it is found, so it is not unchecked" for field in sorted(missed)]


def check_expectations(expected: Mapping[str, str], document: Document) -> None:
    """Fail if a stored field has no line in the table of expectations, or a line has no field."""
    fields = set(list_fields(document))
    assert not fields - set(expected), f"say what checks these stored fields: {sorted(fields - set(expected))}"


# ---- for each kind of run

RUN = SqliteFormat(FILE)


class ForgeryContract:
    """What every kind of run promises of its file: a change is found, or docs/verify.md says that it is not.

    A subclass makes the runs, and says what finds a change of each field.
    """

    kind: ClassVar[str]  # the command, as in docs/verify.md
    model: ClassVar[Any]
    expected: ClassVar[Mapping[str, str]]  # what finds a change of each stored field
    variants: ClassVar[
        Mapping[str, Any]
    ] = {}  # values that a forger would choose, where a small change is not plausible
    cases: ClassVar[Mapping[str, tuple[str, int]]] = {"run": ("run", 0)}  # the runs to forge, and a row of each
    replay: ClassVar[int | None] = 99  # what is answered again when everything is
    replay_damaged: ClassVar[int | None] = None
    named: ClassVar[str] = "binding|row|counts|failed image"  # what a message names, if not the field
    always: ClassVar[int] = 0  # how many of the readers read all damaged values, not only one of each field
    least: ClassVar[tuple[int, int]] = (80, 80)  # forgeries, and refusals of damaged runs

    @classmethod
    def make_runs(cls, folder: Path) -> None:
        """Write runs with images of `data.npz`, and for each a run `other-NAME` of another model."""
        raise NotImplementedError

    def readers(self, run: Path, scratch: Path) -> list[Callable[[], object]]:
        """What reads a run besides its verification."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("forged")
        cls.make_runs(folder)
        return folder

    def verify(self, folder: Path, path: Path, replay: bool) -> Verdict:
        """Verify a run, with nothing answered again or everything."""
        chosen = self.replay if replay else 0
        try:
            found = verify_run(path, model=self.model, data=str(folder / "data.npz"), replay=chosen, progress=False)
        except PprsError as error:
            return Verdict(False, "", error.message)
        return Verdict(found.ok, str(found))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases)

    def test_forgeries_are_found(self, folder: Path, tmp_path: Path, case: str) -> None:
        name, row = self.cases[case]
        document, other = RUN.read(folder / name), RUN.read(folder / f"other-{name}")
        check_expectations(self.expected, document)
        forgeries = [*forge(document, self.variants, row), *forge_rows(document, other)]
        assert len(forgeries) > self.least[0]

        def verify(path: Path, replay: bool) -> Verdict:
            return self.verify(folder, path, replay)

        assert verify(folder / name, True).ok
        surprises = find_surprises(
            forgeries, self.expected, lambda forgery: judge(forgery, folder / name, tmp_path, RUN, verify)
        )
        if len(self.cases) > 1:  # a field that is not checked may be checked in one of them
            unchecked = {field for field, word in self.expected.items() if word == UNCHECKED}
            surprises = [text for text in surprises if text.partition(":")[0] not in unchecked]
        assert not surprises, "\n\n".join(surprises)

    def test_fields_that_nothing_checks_are_documented(self) -> None:
        assert documented(self.kind) == {field for field, word in self.expected.items() if word == UNCHECKED}

    def test_damaged_runs_are_refused_with_the_field(self, folder: Path, tmp_path: Path) -> None:
        """Whoever reads a damaged run says what is wrong, and never fails with an error of Python."""
        name, _ = next(iter(self.cases.values()))
        run = shutil.copytree(folder / name, tmp_path / "run")
        readers = [lambda: self.verify_damaged(folder, run), *self.readers(run, tmp_path)]
        refused, silent = 0, list[str]()
        for forgery in damage(RUN.read(run)):
            try:
                RUN.write(run, forgery.document)
            except (sqlite3.Error, OverflowError, TypeError):  # no file can hold it
                continue
            for read in readers if "'garbage'" in forgery.what else readers[: 1 + self.always]:
                try:
                    read()
                except PprsError as error:
                    refused += 1
                    silent += [f"{forgery}: {text}" for text in self._object_to(forgery, error)]
        assert not silent, "\n".join(silent)
        assert refused > self.least[1]

    def verify_damaged(self, folder: Path, run: Path) -> object:
        data = str(folder / "data.npz")
        return verify_run(run, model=self.model, data=data, replay=self.replay_damaged, progress=False)

    def _object_to(self, forgery: Forgery, error: PprsError) -> list[str]:
        """Return what is wrong with the message about a damaged run."""
        if forgery.field == "settings.guarantee" and "which this version of pprs does not know" in error.message:
            return []  # as a run of a later version would be
        if not isinstance(error, DamagedError):  # which commands turn into exit code 1
            return [f"not a DamagedError: {error}"]
        is_named = re.search(rf"{forgery.field.rpartition('.')[2]}|{self.named}", error.message)
        return [] if is_named else [str(error)]
