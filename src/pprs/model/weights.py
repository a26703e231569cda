"""Weights that `pprs train` wrote: one safetensors file that says by itself how to build its network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from pprs._files import atomic_write
from pprs.errors import PprsError
from pprs.model.base import Model
from pprs.model.resnet import Architecture, ResNet

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")


class Weights:
    """The source for `M.safetensors`."""

    @staticmethod
    def claims(spec: str) -> bool:
        return Path(spec).suffix in (".safetensors", *PICKLES)

    @staticmethod
    def load(spec: str) -> Model:
        path = Path(spec)
        if not path.is_file():
            raise PprsError(f"there is no weight file by that name. Make one with: pprs train --data DATA --out {path}")
        _refuse_pickle(path)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise PprsError(
                f"it is not a whole safetensors file ({error}). It may have been cut short: copy or train it again."
            ) from error
        if "pprs" not in metadata:
            raise PprsError(
                "it holds weights but not the network they belong to: it was not written by `pprs train`. Give `model` "
                "as module:factory, with a function that builds the network and loads this file."
            )
        try:
            about = json.loads(metadata["pprs"])
            arch = Architecture.from_dict(about["architecture"])
            net = arch.build()
            net.load_state_dict(tensors)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise PprsError(f"its weights do not fit the network it describes ({error}). Train it again.") from error
        names = about.get("class_names")
        return Model(net, spec, arch.num_classes, tuple(names) if names else None, tuple(about["input_shape"]))


def save(
    path: Path,
    net: ResNet,
    arch: Architecture,
    *,
    input_shape: tuple[int, int, int],
    class_names: tuple[str, ...] | None,
    training: dict[str, Any],
) -> None:
    """Write a network so that its file alone brings it back."""
    about = {
        "architecture": arch.to_dict(),
        "input_shape": input_shape,
        "class_names": class_names,
        "training": training,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()}
    with atomic_write(path) as part:
        part.write_bytes(to_bytes(tensors, metadata={"pprs": json.dumps(about)}))


def _refuse_pickle(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(9)
    whole = start[8:] == b"{"  # a safetensors file: the length of its header, then JSON
    if path.suffix in PICKLES or (not whole and (start[:2] == b"PK" or start[:1] == b"\x80")):
        raise PprsError(
            "it is a Python pickle, which can run any code when it is read, so it is refused. Convert it once where "
            "you trust it: safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'M.safetensors'). Then "
            "give `model` as module:factory, with a function that builds the network and loads the new file."
        )


def describe(path: Path) -> dict[str, Any]:
    """What a weight file says of itself."""
    with safe_open(path, framework="pt") as file:
        about: dict[str, Any] = json.loads((file.metadata() or {}).get("pprs", "{}"))
    return about


__all__ = ["Weights", "describe", "save"]
