"""When the tests are left out that draw committed figures again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redrawn
from conftest import pytest_collection_modifyitems

FILES = ("src/pprs/drawing.py", "src/pprs/plan.toml", "docs/results/a.parquet", "tests/golden/test_a.py", *redrawn.READ)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of which nothing has changed since its figures were drawn."""
    for name in (*FILES, "src/pprs/unrelated.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    real = redrawn.ROOT
    for name in ("ROOT", "PACKAGE", "NOTE", "RESULTS"):
        monkeypatch.setattr(redrawn, name, tmp_path / getattr(redrawn, name).relative_to(real))
    files = ["src/pprs/drawing.py"]
    redrawn.NOTE.write_text(json.dumps({"digest": redrawn.digest_files(files), "files": files}))
    assert redrawn.is_current()
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_each_dependency_that_changes_is_noticed(root: Path, name: str) -> None:
    (root / name).write_text("changed")
    assert not redrawn.is_current()
    (root / name).write_text(name)
    assert redrawn.is_current()
    (root / name).unlink()
    assert not redrawn.is_current()


def test_what_nothing_imports_does_not_matter(root: Path) -> None:
    (root / "src/pprs/unrelated.py").write_text("changed")
    (root / "docs/results/runs").mkdir()
    (root / "docs/results/runs/run.sqlite").write_text("left by a run")
    (root / "src/pprs/.mypy_cache").mkdir()
    (root / "src/pprs/.mypy_cache/types.db").write_text("left by a check")
    assert redrawn.is_current()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": null, "files": []}', '{"digest": "", "files": null}'])
def test_a_note_that_makes_no_sense_counts_for_nothing(root: Path, text: str) -> None:
    redrawn.NOTE.write_text(text)
    assert not redrawn.is_current()
    redrawn.NOTE.unlink()
    assert not redrawn.is_current()


class Item:
    def __init__(self, *marks: str, fixtures: tuple[str, ...] = ()) -> None:
        self.marks, self.fixturenames = list(marks), fixtures

    def add_marker(self, name: str) -> None:
        self.marks.append(name)

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks


@pytest.mark.parametrize(
    ("option", "unchanged", "chosen"),
    [("", True, "abc"), ("unless", False, "abc"), ("unless", True, "a"), ("note", True, "bc"), ("note", False, "bc")],
)
def test_which_tests_are_chosen(
    option: str, unchanged: bool, chosen: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not unchanged:
        redrawn.NOTE.unlink()
    left_out: list[Any] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    config: Any = SimpleNamespace(getoption=lambda name: bool(option) and option in name, hook=hook)
    named: dict[str, Any] = {"a": Item("slow"), "b": Item("redraw"), "c": Item(fixtures=("quick",))}
    items = list(named.values())
    pytest_collection_modifyitems(config, items)
    assert items == [named[name] for name in chosen]
    assert len(items) + len(left_out) == 3  # what is not chosen is reported
