"""The section of a report on runs of one kind, and the shell that joins sections to one page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pprs._version import __version__
from pprs.errors import ConfigurationError
from pprs.report.render import render
from pprs.report.table import NONE, Table
from pprs.runs.provenance import Provenance


@dataclass(frozen=True)
class MethodSettings:
    """The settings of a run, as text."""

    name: str
    full_name: str
    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, name: str, full_name: str, settings: Provenance) -> MethodSettings:
        """Return the settings of a run that is called by this name."""
        stored = {key: value for key, value in settings.to_dict().items() if key not in ("class_names", "format")}
        return cls(name, full_name, tuple((key, _to_text(value)) for key, value in stored.items()))


def _to_text(value: Any) -> str:
    return NONE if value is None else value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class Section:
    """What a report says about runs of one kind.

    Attributes:
        kind: The guarantee of the runs.
        title: The title.
        table: The summary of the runs.
        notes: What the numbers measure, and the caveats that belong to them.
        methods: The settings of the runs.
        make_body: Returns the text, figures and examples as HTML. It is only called if a page is written.
        make_figure: Draws the main figure as "pdf", "png" or "svg", if there is one.
        make_markdown: Returns the tables as Markdown.
        data: Returns the numbers, for JSON.
        style: Rules of CSS that the body needs.
    """

    kind: str
    title: str
    table: Table
    notes: tuple[str, ...]
    methods: Callable[[], Sequence[MethodSettings]]
    make_body: Callable[[], Markup]
    make_figure: Callable[[str], bytes] | None
    make_markdown: Callable[[], str]
    data: Callable[[], Any]
    style: str = ""


def render_sections(sections: Sequence[Section], kind: str) -> bytes:
    """Return sections as a file: "html", "pdf", "png", "svg", "md" or "json".

    Raises:
        ConfigurationError: If a figure is wanted, and there is none or more than one.
    """
    if kind == "html":
        title = sections[0].title if len(sections) == 1 else "Certified robustness"
        values = [(section, section.make_body(), list(section.methods())) for section in sections]
        style = Markup("\n".join(dict.fromkeys(section.style for section in sections if section.style)))
        page = render("shell.html", title=title, sections=values, style=style, version=__version__)
        return str(page).encode()
    if kind == "md":
        return "\n".join(section.make_markdown() for section in sections).encode()
    if kind == "json":
        data = [section.data() for section in sections]
        # One kind is written as it always was, and several by their kinds.
        content = data[0] if len(sections) == 1 else {s.kind: d for s, d in zip(sections, data, strict=True)}
        return (json.dumps(content, indent=1) + "\n").encode()
    figures = [section.make_figure for section in sections if section.make_figure is not None]
    if len(figures) != 1:
        what = "have no figure" if not figures else "promise different things, and so have a figure each"
        raise ConfigurationError(f"these runs {what}. Write a page (.html) instead.", parameter="path")
    return figures[0](kind)


__all__ = ["MethodSettings", "Section", "render_sections"]
