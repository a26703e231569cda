"""Functions fit on a screen, and modules are read in one go. Longer functions are listed here, with the reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pprs

ROOT = Path(pprs.__file__).parent
MOST_OF_A_MODULE, MOST_OF_A_FUNCTION, MOST_CODE = 450, 60, 40
# Kernels are loops that a compiler takes as a whole.
MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] != "kernels"]
LONG_FUNCTIONS = {
    "cli/certify.py:certify": "checks all options before anything is loaded, then certifies, compares and shows",
}


def functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.relative_to(ROOT).as_posix()}:{node.name}", node


def is_long(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function is over 60 lines.

    A public function may have a long signature and docstring, which list its arguments and what each means. Then its
    code alone counts.
    """
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    if lines <= MOST_OF_A_FUNCTION:
        return False
    if node.name.startswith("_"):
        return True
    docstring = ast.get_docstring(node, clean=False)
    signature = node.body[0].lineno - node.lineno
    return lines - signature - (len(docstring.splitlines()) if docstring else 0) > MOST_CODE


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_is_long_without_a_reason(path: Path) -> None:
    long = [name for name, node in functions(path) if is_long(node) and name not in LONG_FUNCTIONS]
    assert not long, f"{long} have over {MOST_OF_A_FUNCTION} lines: divide them, or say here why not"
    name = path.relative_to(ROOT).as_posix()
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_OF_A_MODULE, f"{name} has {lines} lines: divide it"


def test_a_long_function_is_found() -> None:
    body = "\n".join(["    x = 1"] * MOST_OF_A_FUNCTION)
    docstring = '    """' + "\n".join(["A line."] * MOST_OF_A_FUNCTION) + '"""\n    return 1'
    cases = {f"def f():\n{body}": True, f"def f():\n{docstring}": False, f"def _f():\n{docstring}": True}
    for text, expected in cases.items():
        (node,) = ast.parse(text).body
        assert isinstance(node, ast.FunctionDef)
        assert is_long(node) == expected
