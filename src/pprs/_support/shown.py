"""How objects are shown: in one line, and in a notebook as a small table."""

from __future__ import annotations

import html
from typing import Any


class Shown:
    """Mixin for classes that are shown by a few facts. Those that are None are left out."""

    def _facts(self) -> dict[str, Any]:
        """Return what is worth knowing at a glance, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items() if value is not None)
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self) -> str:
        return to_html(type(self).__name__, self._facts())


def to_html(title: str, facts: dict[str, Any]) -> str:
    """Return facts as a table, with all that they say escaped.

    >>> to_html("Model", {"source": "<b>", "classes": None})
    '<table><caption>Model</caption><tr><th>source</th><td>&lt;b&gt;</td></tr></table>'
    """
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in facts.items()
        if value is not None
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"
