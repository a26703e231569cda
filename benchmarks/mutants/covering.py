"""Which tests execute which lines, and how long they take."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.mutants.operators import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "pprs"


@dataclass(frozen=True)
class Covered:
    """One test that passes: its CPU seconds, and the lines of each module that it executes."""

    name: str
    seconds: float
    lines: dict[str, frozenset[int]]


class Recorder:
    """Records lines and seconds of tests while they run."""

    def __init__(self, modules: list[str]) -> None:
        self._files = {str(PACKAGE / f"{module}.py"): module for module in modules}
        self._lines: dict[str, set[int]] = {}
        self.tests: list[dict[str, Any]] = []

    def record(self, name: str, run: Callable[[], bool]) -> None:
        """Run a test, which says whether it passes."""
        self._lines, began = defaultdict(set), time.process_time()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            passes = run()
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        if passes and self._lines:
            lines = {module: sorted(found) for module, found in self._lines.items()}
            self.tests.append({"name": name, "seconds": round(time.process_time() - began, 3), "lines": lines})

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        module = self._files.get(frame.f_code.co_filename)
        if module is None:
            return None
        lines = self._lines[module]

        def note(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return note

        return note(frame, event, argument)


def digest(path: Path, modules: Iterable[str]) -> str:
    return hashlib.sha256(path.read_bytes() + " ".join(modules).encode()).hexdigest()[:16]


def write_tests(path: Path, tests: list[dict[str, Any]], sources: dict[str, str]) -> None:
    """Keep what tests execute, with the lines that the functions of the modules have now."""
    content = {"functions": {module: list_functions(source) for module, source in sources.items()}, "tests": tests}
    path.with_suffix(".part").write_text(json.dumps(content), encoding="utf-8")
    path.with_suffix(".part").replace(path)


def read_tests(path: Path, sources: dict[str, str]) -> Iterator[Covered]:
    """Return what tests execute. In a module that has changed since, that is whole functions, by their names."""
    content = json.loads(path.read_text(encoding="utf-8"))
    now = {module: list_functions(source) for module, source in sources.items()}
    then = content["functions"]
    for test in content["tests"]:
        lines = {module: frozenset(found) for module, found in test["lines"].items() if module in now}
        for module in [module for module in lines if then[module] != now[module]]:
            names = [name for name, (first, last) in then[module].items() if lines[module] & {*range(first, last + 1)}]
            spans = [now[module][name] for name in names if name in now[module]]
            lines[module] = frozenset(line for first, last in spans for line in range(first, last + 1))
        yield Covered(test["name"], test["seconds"], lines)


def list_functions(source: str) -> dict[str, list[int]]:
    """Return the first and last line of each function, by its name with those of its classes."""
    found: dict[str, list[int]] = {}

    def visit(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
                if isinstance(child, ast.FunctionDef):
                    found[inner] = [child.lineno, child.end_lineno or child.lineno]
                visit(child, inner)
            else:
                visit(child, name)

    visit(ast.parse(source), "")
    return found


def choose_tests(mutant: Mutant, tests: list[Covered], source: str, seconds: float) -> tuple[list[Covered], int]:
    """Return tests that execute the mutant's statement: those that together take this long, the cheapest first.

    The second value is the number of all tests that execute it.

    A constant of a module is executed by its import, so the tests are those of the lines that name it.
    """
    wanted = set(range(mutant.lines[0], mutant.lines[1] + 1))
    if not mutant.function:
        name = source.splitlines()[mutant.lines[0] - 1].split("=")[0].split(":")[0].strip()
        wanted = {i for i, line in enumerate(source.splitlines(), 1) if name in line and line.startswith(" ")}
    found = [test for test in tests if wanted & test.lines.get(mutant.module, frozenset())]
    if not found and not mutant.function:  # named in another module
        found = [test for test in tests if mutant.module in test.lines]
    chosen, spent = list[Covered](), 0.0
    for test in sorted(found, key=lambda test: (test.seconds, test.name)):
        spent += test.seconds
        if chosen and spent > seconds:
            break
        chosen.append(test)
    return chosen, len(found)
