"""The same mutants in earlier sources, to ask the tests of an earlier commit about them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.mutants.operators import Change, Key, Mutant, list_mutants

Pair = tuple[Mutant, Change]
Name = tuple[str, str, str, str, str, int]


def find_same(keys: Iterable[Key], now: Path, then: Path) -> dict[Key, Pair]:
    """Return, for the mutants of a package that it had before, the earlier ones.

    A mutant is the same if it changes the same statement, in a function of the same name, in the same way. The function
    may have moved to another class, or to another module of its folder.
    """
    wanted, found = set(keys), dict[Key, Pair]()
    folders = sorted({key[0].partition("/")[0] for key in wanted})
    former = defaultdict[Name, list[Pair]](list)
    for name, pair in _name_all(then, folders):
        former[name].append(pair)
    for name, (mutant, _) in _name_all(now, folders):
        if mutant.key in wanted and name in former:
            candidates = former[name]
            same = [pair for pair in candidates if pair[0].module == mutant.module] or candidates
            if len(same) == 1:
                found[mutant.key] = same[0]
    return found


def _name_all(package: Path, folders: list[str]) -> Iterator[tuple[Name, Pair]]:
    for folder in folders:
        for path in sorted((package / folder).rglob("*.py")):
            yield from _name(path.relative_to(package).with_suffix("").as_posix(), path.read_text(encoding="utf-8"))


def _name(module: str, source: str) -> Iterator[tuple[Name, Pair]]:
    """Name the mutants of a module by their statement, as it is written without its spaces."""
    lines, seen = source.splitlines(), Counter[tuple[str, ...]]()
    for mutant, change in list_mutants(module, source):
        statement = "".join("".join(lines[mutant.lines[0] - 1 : mutant.lines[1]]).split())
        function = mutant.function.rpartition(".")[2]
        name = (module.partition("/")[0], function, mutant.before, mutant.after, statement)
        yield (*name, seen[mutant.function, *name]), (mutant, change)
        seen[mutant.function, *name] += 1
