"""The mutants that `make mutants` runs the tests on: each is one change, and has a name of its own."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from benchmarks.mutants.children import find_changed
from benchmarks.mutants.covering import list_functions
from benchmarks.mutants.earlier import find_same
from benchmarks.mutants.operators import list_mutants

SOURCE = '''
LIMIT = 0.5

def bound(k: int, n: int, alpha: float = 0.1) -> float:
    """Return 1 of 2."""
    if not 0 <= k <= n:
        raise ValueError(f"{k + 1}")
    check(alpha / 2)
    return min(k - 1, LIMIT) if k and n > 2 else max(range(n), default=True)

class Row:
    size: int = 3

    def __init__(self) -> None:
        super().__init__()

    def describe(self) -> str:
        return "a" + str(self.size - 1)
'''


def test_each_mutant_is_one_change_of_its_own() -> None:
    mutants = list_mutants("m", SOURCE)
    texts = [ast.unparse(change()) for _, change in mutants]
    assert len(set(texts)) == len(texts)
    assert ast.unparse(ast.parse(SOURCE)) not in texts
    assert len({mutant.key for mutant, _ in mutants}) == len(mutants)
    changes = {(mutant.before, mutant.after) for mutant, _ in mutants}
    assert {
        ("0 <= k <= n", "0 < k <= n"), ("0 <= k <= n", "0 <= k < n"), ("not 0 <= k <= n", "0 <= k <= n"),
        ("raise ValueError(f'{k + 1}')", "pass"), ("check(alpha / 2)", "pass"), ("alpha / 2", "alpha * 2"), ("2", "1"),
        ("min(k - 1, LIMIT)", "max(k - 1, LIMIT)"), ("k - 1", "k + 1"), ("k and n > 2", "k or n > 2"), ("0.5", "1.0"),
        ("k and n > 2", "k"), ("n > 2", "n >= 2"), ("range(n)", "range(n - 1)"), ("True", "False"),
        ("super().__init__()", "__class__"),
    } <= changes  # fmt: skip


def test_what_changes_no_result_has_no_mutants() -> None:
    """Messages, defaults and bodies of classes, which a child does not import again, and how things are described."""
    mutants = [mutant for mutant, _ in list_mutants("m", SOURCE)]
    assert {mutant.function for mutant in mutants} == {"", "bound", "Row.__init__"}
    assert not {"0.1", "3", "k + 1"} & {mutant.before for mutant in mutants}


def test_a_mutant_keeps_its_name_when_lines_move() -> None:
    before = {mutant.key for mutant, _ in list_mutants("m", SOURCE)}
    moved = SOURCE.replace("class Row:", "def other() -> int:\n    return 7\n\n\nclass Row:")
    assert before < {mutant.key for mutant, _ in list_mutants("m", moved)}
    assert list_functions(SOURCE) == {"bound": [4, 9], "Row.__init__": [14, 15], "Row.describe": [17, 18]}


def test_constants_that_follow_from_a_changed_one_change_too(tmp_path: Path) -> None:
    source = "FIRST, SECOND = 3, 4\nSUM = FIRST + SECOND\nTABLE = {'sum': SUM}\nOTHER = object()\n"
    path = tmp_path / "constants.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("constants", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    changed = find_changed(module, ast.parse(source.replace("4", "5")))
    assert changed == {"SECOND": (4, 5), "SUM": (7, 8), "TABLE": ({"sum": 7}, {"sum": 8})}
    assert module.SUM == 7  # nothing is changed yet


def test_a_mutant_is_found_where_its_function_was_before(tmp_path: Path) -> None:
    """In another module and class of the folder, and not where the statement was another one."""
    now, then = tmp_path / "now" / "a", tmp_path / "then" / "a"
    for folder in (now, then):
        folder.mkdir(parents=True)
    (now / "new.py").write_text("class B:\n    def f(x):\n        y = x + 1\n        return y * 2\n", encoding="utf-8")
    (then / "old.py").write_text("def f(x):\n    y = x + x\n    return y * 2\n", encoding="utf-8")
    keys = [mutant.key for mutant, _ in list_mutants("a/new", (now / "new.py").read_text(encoding="utf-8"))]
    same = find_same(keys, now.parent, then.parent)
    assert {(key[1], key[2], pair[0].module) for key, pair in same.items()} == {
        ("B.f", "y * 2", "a/old"), ("B.f", "2", "a/old"),
    }  # fmt: skip
