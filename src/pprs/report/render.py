"""The Jinja environment that renders this package's templates."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pprs._support.extras import extra

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup


@functools.cache
def _environment() -> jinja2.Environment:
    """Every value is escaped unless it is Markup; a missing value is an error."""
    with extra():
        import jinja2
    return jinja2.Environment(
        loader=jinja2.PackageLoader("pprs.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def render(template: str, **values: object) -> Markup:
    """Render a template of `pprs/report/templates`. The result is not escaped again in other templates."""
    environment = _environment()
    from markupsafe import Markup  # comes with Jinja

    return Markup(environment.get_template(template).render(**values))


__all__ = ["render"]
