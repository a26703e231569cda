"""Turn the formulas of a page into MathML while the site is built, so that no script has to be fetched to show them."""

from __future__ import annotations

import html
import re
from typing import Any

from mkdocs.exceptions import PluginError

try:
    from latex2mathml.converter import convert
except ImportError as error:
    raise PluginError("latex2mathml is missing. Install the docs extra: pip install 'pprs[docs]'") from error

FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    return FORMULA.sub(_to_mathml, content)


def _to_mathml(match: re.Match[str]) -> str:
    inline, block = match[2], match[3]
    latex = html.unescape(block if inline is None else inline).strip()
    return convert(latex, display="inline" if block is None else "block")
