"""The parameters of frozen dataclasses, as scikit-learn's `clone`, pipelines and searches expect them."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from typing import Any, Self, cast

from pprs.errors import ConfigurationError, suggest


class Parameters:
    """Mixin for frozen dataclasses whose fields are the parameters of a scikit-learn estimator."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name.

        Args:
            deep: Whether to add the options of objects that this one builds on, such as `of__n_segments`.
        """
        params = {name: getattr(self, name) for name in self._option_names()}
        if deep:
            for name, value in list(params.items()):
                if isinstance(value, Parameters):
                    params |= {f"{name}__{key}": inner for key, inner in value.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change options in place, as searches of scikit-learn do with the copies that they make.

        Prefer `dataclasses.replace` elsewhere: an object that is the key of a dictionary is not found there once its
        options have changed. A classifier keeps the options that it was created with.

        Args:
            **params: New values by name, with names as `get_params` returns them.

        Returns:
            This object.

        Raises:
            ConfigurationError: If there is no such option, or if a value is not valid. Nothing is changed then.
        """
        options, nested = dict[str, Any](), defaultdict[str, dict[str, Any]](dict)
        for name, value in params.items():
            first, _, rest = name.partition("__")
            if first not in self._option_names():
                raise ConfigurationError(f'{self} has no option "{first}". {suggest(first, self._option_names())}')
            if rest:
                nested[first][rest] = value
            else:
                options[first] = value
        for first, inner in nested.items():
            of = options.get(first, getattr(self, first))
            if not isinstance(of, Parameters):
                raise ConfigurationError(f'the option "{first}" of {self} has no options of its own')
            options[first] = copy.copy(of).set_params(**inner)
        changed = dataclasses.replace(cast(Any, self), **options)
        object.__setattr__(self, "__dict__", vars(changed))
        return self

    def _option_names(self) -> list[str]:
        if not dataclasses.is_dataclass(self):
            raise ConfigurationError(f"the options of {type(self).__name__} are not known: make it a dataclass")
        return [field.name for field in dataclasses.fields(self)]
