"""The templates of web pages, and the one environment that fills them in."""

from __future__ import annotations

import functools

import jinja2
from markupsafe import Markup


@functools.cache
def _environment() -> jinja2.Environment:
    """Every value is escaped unless it is Markup; a value that is missing is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("pprs.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def render(template: str, **values: object) -> Markup:
    """A template of `pprs/report/templates`, filled in; other templates take the result without escaping it again."""
    return Markup(_environment().get_template(template).render(**values))


__all__ = ["render"]
