"""HTML from the package's templates. Every value that they show is escaped."""

from __future__ import annotations

import base64
import functools
from typing import Any

import jinja2

from pprs.certificate import round_down
from pprs.report import figures


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, with filters for pictures and radii."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("pprs.app"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["png_url"] = png_url
    env.filters["picture_url"] = lambda picture: png_url(figures.png(picture))
    env.filters["round_down"] = round_down
    return env


def render(template: str, **values: object) -> str:
    """A template filled with these values."""
    return environment().get_template(template).render(**values)


def render_macro(name: str, *values: object) -> str:
    """One of the pieces in macros.html."""
    macro: Any = getattr(environment().get_template("macros.html").module, name)
    return str(macro(*values))


def png_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
