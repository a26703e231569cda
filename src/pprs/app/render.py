"""HTML from the templates of this package. Every value is escaped."""

from __future__ import annotations

import base64
import functools
from typing import Any

from pprs._support.extras import extra
from pprs.report import figures
from pprs.smoothing.certificate import round_down

with extra():
    import jinja2


@functools.cache
def _environment() -> jinja2.Environment:
    """The templates, with filters for images and radii."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("pprs.app"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["png_url"] = _to_data_url
    env.filters["image_url"] = lambda image: _to_data_url(figures.encode_png(image))
    env.filters["round_down"] = round_down
    return env


def _to_data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def render(template: str, **values: object) -> str:
    """Render a template with these values."""
    return _environment().get_template(template).render(**values)


def _render_macro(name: str, *values: object) -> str:
    macro: Any = getattr(_environment().get_template("macros.html").module, name)
    return str(macro(*values))


def render_number(text: str, unit: str, tip: str, **data: object) -> str:
    """Render a number with its unit, and a tip that appears on hover and on keyboard focus."""
    return _render_macro("number", text, unit, tip, data)


def render_note(text: str, kind: str = "note") -> str:
    """Render a message to the visitor: kind is "note", "empty" (a placeholder) or "error"."""
    return _render_macro("note", text, kind)


def render_chart(png: bytes, alt: str) -> str:
    """Render a chart with its text alternative."""
    return _render_macro("chart", png, alt)


def render_job(state: object, why: str = "") -> str:
    """Render the progress of a job and why it is done, or why it ended without a result. `state` is a `JobState`."""
    return render("job.html", state=state, why=why)
