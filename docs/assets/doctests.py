"""Show the doctests of a docstring as Python sessions. Markdown would take `>>>` for a quotation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

SESSION = re.compile(r"^>>> .*(?:\n(?!\s*$).+)*", re.M)


class Doctests(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(_fence, obj.docstring.value)


def _fence(match: re.Match[str]) -> str:
    session = re.sub(r" *# doctest: .*", "", match[0])
    return f"```pycon\n{session}\n```"
