"""What the tests take, by room and the slowest ones: `make durations`, from the report of the last `make test`.

The table is durations.md beside this file. Seconds are of all test processes together, which share the cores.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

TABLE = Path(__file__).with_suffix(".md")
SLOWEST = 40


@dataclass(frozen=True)
class Case:
    """A test: the names of its folder and file, its own name, and the seconds of its fixtures and itself."""

    room: str
    file: str
    name: str
    seconds: float


def read_report(path: Path) -> list[Case]:
    """Return the tests of a report that pytest wrote with --junit-xml."""
    cases = []
    for entry in ElementTree.parse(path).iter("testcase"):
        parts = [part for part in entry.get("classname", "").split(".") if part != "tests"]
        place = [part for part in parts if part[:1].islower()]  # without the class
        room, file = ("doctests", ".".join(place[1:])) if place[0] in ("src", "pprs") else (place[0], place[-1])
        cases.append(Case(room, file, entry.get("name", ""), float(entry.get("time", "0"))))
    return cases


def tabulate(cases: list[Case]) -> str:
    """Return the tables as Markdown."""
    total = sum(case.seconds for case in cases)
    rooms, files = _add_up((case.room, case) for case in cases), _add_up((_place(case), case) for case in cases)
    lines = ["# Durations of the tests", "", f"{len(cases)} tests took {total:.0f} s in all processes together.", ""]
    lines += ["| room | tests | seconds | share |", "|---|--:|--:|--:|"]
    lines += [f"| {room} | {count} | {spent:.0f} | {100 * spent / total:.0f}% |" for room, count, spent in rooms]
    lines += ["", "| file | tests | seconds |", "|---|--:|--:|"]
    lines += [f"| {file} | {count} | {spent:.1f} |" for file, count, spent in files[:SLOWEST]]
    lines += ["", "| test | seconds |", "|---|--:|"]
    slowest = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    lines += [f"| `{_place(case)}::{case.name.replace('|', '/')}` | {case.seconds:.1f} |" for case in slowest]
    return "\n".join(lines) + "\n"


def _place(case: Case) -> str:
    return f"{case.room}/{case.file}"


def _add_up(named: Iterable[tuple[str, Case]]) -> list[tuple[str, int, float]]:
    """The number of tests and their seconds for each name, the slowest first."""
    groups = defaultdict(list)
    for name, case in named:
        groups[name].append(case.seconds)
    return sorted(((name, len(times), sum(times)) for name, times in groups.items()), key=lambda group: -group[2])


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("give the report of a run of the tests: `make test` writes build/tests.xml")
    TABLE.write_text(tabulate(read_report(Path(sys.argv[1]))), encoding="utf-8")
    print(f"wrote {TABLE}")
