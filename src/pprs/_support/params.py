"""The options of frozen dataclasses by name, as scikit-learn's `clone`, pipelines and searches expect them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, cast

from pprs.errors import ConfigurationError, suggest

P = TypeVar("P", bound="Parameters")


class Parameters:
    """Mixin for frozen dataclasses whose fields may be parameters of a scikit-learn estimator."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name.

        Args:
            deep: Whether to add the options of objects that this one builds on, such as `of__n_segments`.
        """
        params = {name: getattr(self, name) for name in _option_names(self)}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, Parameters):
                    params |= {f"{name}__{key}": inner for key, inner in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> NoReturn:
        """Refuse to change options in place, and say what returns a changed copy."""
        raise ConfigurationError(
            f"{self} is never changed in place. Make a changed copy with dataclasses.replace. An estimator that "
            "scikit-learn searches does so if it derives from pprs.integrations.sklearn.SmoothedEstimator."
        )


def replace_params(of: P, params: Mapping[str, Any]) -> P:
    """Return a copy with other options.

    Args:
        of: The object to copy.
        params: New values by name, with names as `get_params` returns them.

    Raises:
        ConfigurationError: If there is no such option, or if a value is not valid.
    """
    options, nested = dict[str, Any](), defaultdict[str, dict[str, Any]](dict)
    for name, value in params.items():
        first, _, rest = name.partition("__")
        if first not in _option_names(of):
            raise ConfigurationError(f'{of} has no option "{first}". {suggest(first, _option_names(of))}')
        if rest:
            nested[first][rest] = value
        else:
            options[first] = value
    for first, inner in nested.items():
        part = options.get(first, getattr(of, first))
        if not isinstance(part, Parameters):
            raise ConfigurationError(f'the option "{first}" of {of} has no options of its own')
        options[first] = replace_params(part, inner)
    return cast(P, dataclasses.replace(cast(Any, of), **options))


def _option_names(of: Parameters) -> list[str]:
    if not dataclasses.is_dataclass(of):
        raise ConfigurationError(f"the options of {type(of).__name__} are not known: make it a dataclass")
    return [field.name for field in dataclasses.fields(of)]
