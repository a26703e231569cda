"""How hard an audit searches."""

from __future__ import annotations

from dataclasses import dataclass

from pprs.errors import ConfigurationError, check_integer

SAMPLES = 1000  # by default
MIN_SAMPLES = 50  # with fewer, even unanimous votes may prove nothing


@dataclass(frozen=True)
class AuditOptions:
    """How much an audit spends on an image.

    Attributes:
        steps: Gradient steps at each norm, or in total where votes are counted.
        samples: Fresh noisy copies of each test. 0 where votes are counted.
        seconds: Time limit.
    """

    steps: int = 20
    samples: int = SAMPLES
    seconds: float = 60.0

    @classmethod
    def of(cls, steps: int, samples: int | None, seconds: float, *, usual: int | None) -> AuditOptions:
        """Return checked options. `usual` are the samples by default, None where votes are counted.

        Raises:
            ConfigurationError: If an option is invalid.
        """
        if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise ConfigurationError(f"`seconds` must be a positive number, not {seconds!r}", parameter="seconds")
        steps = check_integer(steps, "steps", 1)
        if usual is None and samples is not None:
            raise ConfigurationError(
                "`samples` are for tests under noise. Here all votes are counted, so a change that is found is certain "
                "without a test. Leave it out.",
                parameter="samples",
            )
        if usual is None:
            return cls(steps, 0, seconds)
        return cls(steps, check_integer(usual if samples is None else samples, "samples", MIN_SAMPLES), seconds)


class OutOfTime(BaseException):
    """Raised at the time limit. Not an Exception, so that no handler mistakes it for a failure of the network."""
