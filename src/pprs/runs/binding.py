"""What the rows of a run are bound to: the model in all its parts, and its scores of a few fixed noisy images.

Runs of earlier versions have no binding. They can be resumed, but nothing shows that their model is still the same.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pprs.errors import DamagedError
from pprs.model.scores import TOLERANCE, Probe
from pprs.runs.columns import quote_value


@dataclass(frozen=True)
class Binding:
    """The identity of the model that a run was made with.

    Attributes:
        identity: What the scores depend on, from `pprs.model.identity.identify`.
        probe: Labels and margins of a few noisy images, or None if the model could not score them.
    """

    identity: Mapping[str, str]
    probe: Probe | None = None

    def to_text(self) -> str:
        """The binding as it is stored."""
        probe = None if self.probe is None else dataclasses.asdict(self.probe)
        return json.dumps({"identity": dict(self.identity), "probe": probe})

    @classmethod
    def from_text(cls, text: str) -> Binding:
        """The binding from its stored form.

        Raises:
            DamagedError: If it is not one.
        """
        try:
            stored = json.loads(text)
            identity = {name: _check(value, str) for name, value in _check(stored["identity"], dict).items()}
            probe = None if stored["probe"] is None else _to_probe(stored["probe"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DamagedError(f"the binding of the run to its model is damaged ({error!r})") from error
        return cls(identity, probe)

    def differences(self, found: Binding, tolerance: float = TOLERANCE) -> list[str]:
        """Describe each part in which another model differs. The tolerance is that of the scores."""
        lines = describe_parts(self.identity, found.identity)
        if self.probe is None:
            return lines
        scores: str | None = "it fails on the noisy images"
        if found.probe is not None:
            scores = self.probe.difference(found.probe, tolerance)
        return lines if scores is None else [*lines, f"scores: {scores}"]


def _to_probe(stored: Any) -> Probe:
    labels = tuple(_check(label, int) for label in _check(stored["labels"], list))
    margins = tuple(float(_check(margin, int | float)) for margin in _check(stored["margins"], list))
    if len(labels) != len(margins):
        raise ValueError(f"there are {len(labels)} labels and {len(margins)} margins")
    return Probe(labels, margins, float(_check(stored["spread"], int | float)))


def _check(value: Any, kind: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{quote_value(value)} has another type")
    return value


def describe_parts(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Describe the parts of a model that differ, such as "torch: 2.13.0 -> 2.14.0"."""
    names = dict.fromkeys([*expected, *found])
    values = [(name, expected.get(name, "none"), found.get(name, "none")) for name in names]
    return [f"{name}: {old} -> {new}" for name, old, new in values if old != new]
