"""What was found of the mutants: the tables, and the summary."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from benchmarks.mutants.operators import Key

HERE = Path(__file__).resolve().parent
TABLE, EQUIVALENT, SUMMARY = HERE / "table.tsv", HERE / "equivalent.tsv", HERE / "summary.md"
BEFORE, COMMIT = HERE / "before.tsv", "c52a296"  # the last one before the tests were made faster
NAME = ("module", "function", "before", "after", "nth")
KINDS = ("killed", "timed out", "survived", "equivalent")
# What a share of all says about mutants that are not in the sample.
OTHERS = """\
Tests were written for the mutants that survived at first, and those that no claim depends on were set aside, so
this says little about mutants outside the sample. Of the 143 that were added to it last, 128 (89.5%) were found
before any test was written for them."""
Outcomes = dict[Key, tuple[str, str]]  # killed, timed out, survived or equivalent; the test, or the reason


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def key_of(row: dict[str, str]) -> Key:
    return row["module"], row["function"], row["before"], row["after"], int(row["nth"])


def read_outcomes(path: Path) -> Outcomes:
    return {key_of(row): (row["outcome"], row["by"]) for row in read_rows(path)}


def read_equivalent() -> dict[Key, str]:
    """The mutants that change nothing that a claim depends on, each with the reason."""
    return {key_of(row): row["reason"] for row in read_rows(EQUIVALENT)}


def write_outcomes(path: Path, outcomes: Outcomes) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow([*NAME, "outcome", "by"])
        writer.writerows([*key, *result] for key, result in sorted(outcomes.items()))


def summarise(outcomes: Outcomes, modules: list[str], how: str) -> str:
    """Count outcomes by module. Equivalent mutants do not count, and those that end in a time limit are found."""
    parts = {module: {key: what for key, what in outcomes.items() if key[0] == module} for module in modules}
    lines = [
        "# Mutants that the tests find", "", how, "", OTHERS, "",
        f"| module | {' | '.join(KINDS)} | found |", f"|---|{'--:|' * (len(KINDS) + 1)}",
        *(_to_line(name, part, KINDS) for name, part in [*parts.items(), ("together", outcomes)]),
        *_compare(outcomes, read_outcomes(BEFORE)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _to_line(name: str, outcomes: Outcomes, kinds: tuple[str, ...]) -> str:
    count = Counter(what for what, _ in outcomes.values())
    found, asked = count["killed"] + count["timed out"], sum(count.values()) - count["equivalent"]
    share = f"{100 * found / asked:.1f}%" if asked else "–"
    return f"| {name} | {' | '.join(str(count[kind]) for kind in kinds)} | {share} |"


def _compare(outcomes: Outcomes, earlier: Outcomes) -> list[str]:
    """Compare with what the tests of an earlier commit found, of mutants that were there already."""
    kinds = KINDS[:3]
    before = {key: outcome for key, outcome in earlier.items() if outcomes.get(key, ("",))[0] in kinds}
    if not before:
        return []
    after = {key: outcomes[key] for key in before}
    lost = [key for key in before if before[key][0] != "survived" and after[key][0] == "survived"]
    return [
        "", "## Before and after", "",
        f"Commit {COMMIT} is the last one before the tests were made faster. {len(before)} of these mutants were there",
        "already: the same change of the same statement in a function of the same name. Its own tests were",
        "asked about them, with the same options.", "",
        f"| tests | {' | '.join(kinds)} | found |", f"|---|{'--:|' * 4}", _to_line("before", before, kinds),
        _to_line("after", after, kinds), "",
        f"{len(lost) or 'None'} of those found before {'is' if len(lost) < 2 else 'are'} not found now"
        f"{':' if lost else '.'}",
        *(f"- {module}, {function}: `{old}` -> `{new}`" for module, function, old, new, _ in lost), "",
        "`before.tsv` has the tests that found them. It is made in a checkout of that commit, into which",
        "`benchmarks/mutants` is copied: `PYTHONPATH=src python -m benchmarks.mutants --table-of FOLDER`, where",
        "the folder is this checkout.",
    ]  # fmt: skip
