"""The mutants that `make mutants` runs the tests on: each is one change, and has a name of its own."""

from __future__ import annotations

import ast

from benchmarks.mutants.covering import list_functions
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
    } <= changes  # fmt: skip


def test_what_changes_no_result_has_no_mutants() -> None:
    """Messages, defaults and bodies of classes, which a child does not import again, and how things are described."""
    mutants = [mutant for mutant, _ in list_mutants("m", SOURCE)]
    assert {mutant.function for mutant in mutants} == {"", "bound"}
    assert not {"0.1", "3", "k + 1"} & {mutant.before for mutant in mutants}


def test_a_mutant_keeps_its_name_when_lines_move() -> None:
    before = {mutant.key for mutant, _ in list_mutants("m", SOURCE)}
    moved = SOURCE.replace("class Row:", "def other() -> int:\n    return 7\n\n\nclass Row:")
    assert before < {mutant.key for mutant, _ in list_mutants("m", moved)}
    assert list_functions(SOURCE) == {"bound": [4, 9], "Row.describe": [14, 15]}
