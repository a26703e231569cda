"""A table that can be shown on a terminal or written as Markdown, csv or HTML."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pprs.report.render import render
from pprs.smoothing.certificate import round_down

if TYPE_CHECKING:
    from markupsafe import Markup
    from rich.table import Table as RichTable

NONE = "–"


@dataclass(frozen=True)
class TableCell:
    """A table cell.

    Attributes:
        text: The value as text, already rounded.
        detail: Its interval or error, in smaller type where possible.
        tip: An explanation that a browser shows as a tooltip.
        best: Whether this is the best value of its column.
    """

    text: str
    detail: str = ""
    tip: str = ""
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.detail}" if self.detail else self.text

    @classmethod
    def of(cls, value: str | TableCell) -> TableCell:
        """Return the value as a cell."""
        return value if isinstance(value, TableCell) else cls(value)


@dataclass(frozen=True)
class Table:
    """A table of text, with numbers already rounded.

    Attributes:
        heads: The column headings.
        lines: The rows, each with one cell per column.
        title: A title, or an empty string.
    """

    heads: tuple[str, ...]
    lines: tuple[tuple[str | TableCell, ...], ...]
    title: str = ""

    def to_markdown(self) -> str:
        """Return the table as Markdown, without its title."""
        alignment = ["---" if self.is_text(i) else "---:" for i in range(len(self.heads))]
        rows = [self.heads, tuple(alignment), *self.lines]
        return "".join("| " + " | ".join(_one_line(str(cell)) for cell in row) + " |\n" for row in rows)

    def to_csv(self) -> str:
        """Return the table as csv, with empty cells where there is no value."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.heads)
        writer.writerows([["" if str(cell) == NONE else str(cell).strip("`") for cell in line] for line in self.lines])
        return buffer.getvalue()

    def to_html(self) -> Markup:
        """Return the table as HTML: best values bold, details small, tips as tooltips."""
        lines = [[TableCell.of(cell) for cell in line] for line in self.lines]
        return render("table.html", table=self, lines=lines, is_text=[self.is_text(i) for i in range(len(self.heads))])

    def to_rich(self) -> RichTable:
        """Return the table as a Rich table for a terminal."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable
        from rich.text import Text

        title = Text(self.title) if self.title else None
        table = RichTable(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, head in enumerate(self.heads):
            is_text = self.is_text(i)
            table.add_column(
                Text(head), justify="left" if is_text else "right", overflow="fold" if is_text else "ellipsis"
            )
        for line in self.lines:
            table.add_row(*(Text(str(cell)) for cell in line))
        return table

    def is_text(self, column: int) -> bool:
        """Return whether a column holds text, aligned left, rather than numbers."""
        cells = [str(line[column]) for line in self.lines]
        return any(cell[:1].isalpha() or cell.startswith("`") for cell in cells)


def escape_markdown(text: str) -> str:
    """Return a text of unknown origin so that Markdown shows it as it is, without its tags, links and code.

    >>> escape_markdown("<b>![x](u)`")
    '&lt;b&gt;!\\\\[x](u)\\\\`'
    """
    text = text.replace("\\", "\\\\").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("[", r"\[").replace("`", r"\`")


def _one_line(text: str) -> str:
    """
    >>> _one_line("a|b")
    'a\\\\|b'
    """
    return " ".join(text.splitlines()).replace("|", r"\|")


def format_number(value: float, decimals: int = 1, *, sign: bool = False) -> str:
    """Format a number; a dash for NaN."""
    return NONE if math.isnan(value) else f"{value:{'+' if sign else ''}.{decimals}f}"


def format_percent(share: float, decimals: int = 1) -> str:
    """Format a share as a percentage; a dash for NaN."""
    return NONE if math.isnan(share) else f"{100 * share:.{decimals}f}%"


def format_radius(value: float) -> str:
    """Format a radius, rounded down; a dash for NaN."""
    return NONE if math.isnan(value) else round_down(value)


def find_best(values: Sequence[float]) -> float:
    """Return the largest value that is not NaN; NaN if there is none."""
    return max((v for v in values if not math.isnan(v)), default=math.nan)
