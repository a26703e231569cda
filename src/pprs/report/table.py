"""One table, which terminals, Markdown, csv and web pages show in their way."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pprs.certificate import round_down
from pprs.report.render import render

if TYPE_CHECKING:
    from markupsafe import Markup
    from rich.table import Table as RichTable

NONE = "–"


@dataclass(frozen=True)
class Cell:
    """A value as text, already rounded; `detail` is its interval or error, `tip` what it means."""

    text: str
    detail: str = ""
    tip: str = ""
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.detail}" if self.detail else self.text

    @classmethod
    def of(cls, value: str | Cell) -> Cell:
        return value if isinstance(value, Cell) else cls(value)


@dataclass(frozen=True)
class Table:
    """Heads, and lines of words and numbers that are already rounded."""

    heads: tuple[str, ...]
    lines: tuple[tuple[str | Cell, ...], ...]
    title: str = ""

    def to_markdown(self) -> str:
        aligned = ["---" if self.is_words(i) else "---:" for i in range(len(self.heads))]
        rows = [self.heads, tuple(aligned), *self.lines]
        return "".join("| " + " | ".join(_one_line(str(cell)) for cell in row) + " |\n" for row in rows)

    def to_csv(self) -> str:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.heads)
        writer.writerows([["" if str(cell) == NONE else str(cell).strip("`") for cell in line] for line in self.lines])
        return buffer.getvalue()

    def to_html(self) -> Markup:
        """The best values are bold; details are small, and tips are shown by the browser."""
        lines = [[Cell.of(cell) for cell in line] for line in self.lines]
        return render("table.html", table=self, lines=lines, words=[self.is_words(i) for i in range(len(self.heads))])

    def to_rich(self) -> RichTable:
        """For a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        title = Text(self.title) if self.title else None
        table = RichTable(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, head in enumerate(self.heads):
            words = self.is_words(i)
            table.add_column(Text(head), justify="left" if words else "right", overflow="fold" if words else "ellipsis")
        for line in self.lines:
            table.add_row(*(Text(str(cell)) for cell in line))
        return table

    def is_words(self, column: int) -> bool:
        """Whether the column is to be aligned as words."""
        cells = [str(line[column]) for line in self.lines]
        return any(cell[:1].isalpha() or cell.startswith("`") for cell in cells)


def _one_line(text: str) -> str:
    """
    >>> _one_line("a|b")
    'a\\\\|b'
    """
    return " ".join(text.splitlines()).replace("|", r"\|")


def number(value: float, decimals: int = 1, *, sign: bool = False) -> str:
    return NONE if math.isnan(value) else f"{value:{'+' if sign else ''}.{decimals}f}"


def percent(share: float, decimals: int = 1) -> str:
    return NONE if math.isnan(share) else f"{100 * share:.{decimals}f}%"


def radius(value: float) -> str:
    """A radius, rounded down."""
    return NONE if math.isnan(value) else round_down(value)


def best_of(values: Sequence[float]) -> float:
    """The largest that is known; NaN where there is none."""
    return max((v for v in values if not math.isnan(v)), default=math.nan)
