"""Noise distributions. A new one is a frozen dataclass in its own file and an entry in NOISES."""

from __future__ import annotations

import numbers
from typing import Any, TypeAlias

from pprs._support import text as _text
from pprs.errors import ConfigurationError, check_type
from pprs.noise.base import Noise, Rng, host_rng, keyed_rng, standard_normal
from pprs.noise.exponential import Exponential
from pprs.noise.gaussian import Gaussian
from pprs.noise.power_law import PowerLaw
from pprs.noise.quantised import (
    Quantisation,
    QuantisedImage,
    are_levels,
    describe_levels,
    digest_image,
    quantise,
    quantise_signal,
    quantised_gaussian,
)

AnyNoise: TypeAlias = Noise | str | float
NOISES: dict[str, type[Noise]] = {kind.name: kind for kind in (Gaussian, Exponential, PowerLaw)}
THRESHOLDS = "dither"  # which takes the place of noise in some functions


def parse_noise(text: str) -> Noise:
    """Return the noise that a text such as `gaussian:sigma=0.5` describes."""
    _refuse_thresholds(text, "noise")
    return _text.from_text(text, NOISES, "noise")


def as_noise(value: Any, parameter: str = "noise") -> Noise:
    """Return the noise that an argument gives: as an object, as text, or as the sigma of Gaussian noise.

    >>> as_noise(0.25), as_noise("exponential:sigma=1.0").sigma
    (Gaussian(sigma=0.25), 1.0)
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            return Gaussian(float(value))
        except ConfigurationError as error:
            raise ConfigurationError(f"`{parameter}`: {error.message}", parameter=parameter) from error
    _refuse_thresholds(str(value), parameter)
    noise = parse_noise(value) if isinstance(value, str) else value
    check_type(noise, Noise, parameter, 'pprs.Gaussian(0.25), "gaussian:sigma=0.25" or 0.25')
    return noise


def _refuse_thresholds(text: str, parameter: str) -> None:
    """Raise an error if a text describes thresholds, which are no noise."""
    if text.strip().partition(":")[0] == THRESHOLDS:
        raise ConfigurationError(
            f"`{parameter}` {text} is thresholds, whose votes are counted, and this draws noise: give gaussian, "
            "exponential or powerlaw. Thresholds are for `pprs certify`, whose rows hold the label, `pprs adapt`, "
            "`pprs train` and `pprs show`, and in Python for certify_dataset, adapt and pprs.dither.DitherClassifier.",
            parameter=parameter,
        )


def noise_of(text: str, sigma: float | None) -> Noise:
    """Return the noise with this name, options if any, and sigma, as in `noise_of("powerlaw:a=900", 0.5)`.

    Raises:
        ConfigurationError: If there is no such noise, or if sigma is missing.
    """
    name, _, options = text.partition(":")
    _refuse_thresholds(text, "noise")
    if sigma is None:
        raise ConfigurationError(
            f"give the standard deviation of the {name} noise as `sigma`, such as 0.25", parameter="sigma"
        )
    return parse_noise(f"{name}:sigma={sigma}" + (f",{options}" if options else ""))


__all__ = [
    "NOISES", "AnyNoise", "Exponential", "Gaussian", "Noise", "PowerLaw", "Quantisation", "QuantisedImage", "Rng",
    "are_levels", "as_noise", "describe_levels", "digest_image", "host_rng", "keyed_rng", "noise_of", "parse_noise",
    "quantise", "quantise_signal", "quantised_gaussian", "standard_normal",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
