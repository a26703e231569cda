"""Small trained networks that come with the package, so that a first certificate needs no training.

On processors of one kind, the command in `COMMANDS` makes the file to the last bit, and on others the same network up
to rounding.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import as_file, files

from pprs.errors import ConfigurationError, suggest
from pprs.model.base import Model
from pprs.model.weights import Weights

PREFIX = "builtin:"
COMMANDS = {  # name -> what trained it
    "digits": "pprs train --data builtin:mnist5k --width 8 --epochs 8 --threads 1 --out digits.safetensors",
    "gunpoint": (
        "pprs train --data builtin:GunPoint --width 8 --epochs 60 --batch-size 16 --lr 0.05 --seed 1 --threads 1 "
        "--out gunpoint.safetensors"
    ),
    "scenes": (
        "pprs train --task segment --data builtin:scenes --width 6 --epochs 10 --threads 1 --out scenes.safetensors"
    ),
}


class Builtin:
    """The source for `builtin:NAME`."""

    @staticmethod
    def claims(spec: str) -> bool:
        return spec.startswith(PREFIX)

    @staticmethod
    def load(spec: str) -> Model:
        name = spec.removeprefix(PREFIX)
        if name not in COMMANDS:
            raise ConfigurationError(f'there is no built-in network "{name}". {suggest(name, COMMANDS)}')
        with as_file(files("pprs.model.builtin") / f"{name}.safetensors") as path:
            return replace(Weights.load(str(path)), source=spec)


__all__ = ["COMMANDS", "Builtin"]
