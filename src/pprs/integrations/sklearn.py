"""Estimators of scikit-learn whose parameters include noises and partitions, which are frozen."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Self

from pprs._support.extras import extra
from pprs._support.params import Parameters, replace_params

with extra():
    from sklearn.base import BaseEstimator


class SmoothedEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of your estimators with noises and partitions as parameters, so that searches can vary their options.

    Noises and partitions never change. Where scikit-learn sets `partition__n_segments`, the estimator gets a partition
    that differs from the one before in this option. Derive from this class instead of `sklearn.base.BaseEstimator`.
    """

    def set_params(self, **params: Any) -> Self:
        """Set parameters, and replace noises and partitions by copies with other options.

        Args:
            **params: New values by name, with names as `get_params` returns them.

        Returns:
            This estimator.

        Raises:
            ConfigurationError: If a noise or a partition has no such option, or if its value is not valid. Nothing is
                changed then.
        """
        current, options = self.get_params(deep=False) | params, defaultdict[str, dict[str, Any]](dict)
        for name in list(params):
            first, _, rest = name.partition("__")
            if rest and isinstance(current.get(first), Parameters):
                options[first][rest] = params.pop(name)
        for first, values in options.items():
            params[first] = replace_params(current[first], values)
        super().set_params(**params)
        return self


__all__ = ["SmoothedEstimator"]
