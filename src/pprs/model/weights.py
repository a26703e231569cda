"""Weights written by `pprs train`: a safetensors file that also describes how to build its network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from pprs._support.files import atomic_write, suggest_files
from pprs.errors import ConfigurationError, PprsError
from pprs.model.adaptation import METADATA, THRESHOLDS
from pprs.model.base import Model
from pprs.model.resnet import Architecture, ResNet
from pprs.model.unet import KIND, UNet, UNetArchitecture

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
            raise PprsError(
                f"there is no weight file with that name.{suggest_files(spec)} Make one with: "
                f"pprs train --data DATA --out {path}"
            )
        _refuse_pickle(path)
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as error:
            raise PprsError(
                f"it is not a complete safetensors file ({error}). It may be truncated: copy or train it again."
            ) from error
        if METADATA in metadata:
            raise ConfigurationError(
                "it is an adaptation of a network. Give it as `adapted`, and the network as `model`."
            )
        if "pprs" not in metadata:
            raise PprsError(
                "it contains weights but not the network they belong to, since it was not written by `pprs train`. "
                "Give `model` as module:factory, with a function that builds the network and loads this file."
            )
        try:
            description = json.loads(metadata["pprs"])
            arch, task = _read_architecture(description["architecture"])
            net = arch.build()
            net.load_state_dict(tensors)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise PprsError(
                f"its weights do not match the network that it describes ({error}). Train it again."
            ) from error
        names = description.get("class_names")
        return Model(
            net, spec, arch.num_classes, tuple(names) if names else None, tuple(description["input_shape"]),
            trained_behind=_read_training_partition(description), trained_estimate=_read_estimate(description),
            task=task, sample_rate=_read_sample_rate(description),
        )  # fmt: skip


def _read_sample_rate(description: dict[str, Any]) -> int | None:
    """Return the sample rate of the signals that the network was trained on, if it is known."""
    rate = (description.get("training") or {}).get("sample_rate")
    return rate if isinstance(rate, int) and rate > 0 else None


def _read_training_partition(description: dict[str, Any]) -> str | None:
    """Return the partition behind which the network was trained under noise, or None if there was no noise."""
    training = description.get("training") or {}
    if training.get("noise", "None") == "None" or _read_estimate(description) is not None:
        return None
    partition = str(training.get("partition", "None"))
    return "none" if partition == "None" else partition  # as earlier versions wrote it


def _read_estimate(description: dict[str, Any]) -> str | None:
    """Return how inputs were estimated if the network was trained behind thresholds, else None."""
    training = description.get("training") or {}
    is_dithered = str(training.get("noise", "")).partition(":")[0] == THRESHOLDS
    return str(training.get("partition", "None")) if is_dithered else None


def _read_architecture(values: dict[str, Any]) -> tuple[Architecture | UNetArchitecture, str]:
    """Return the architecture that a file describes, and what its network does."""
    if values.get("kind") == KIND:
        return UNetArchitecture.from_dict(values), "segment"
    return Architecture.from_dict(values), "classify"


def save(
    path: Path,
    net: ResNet | UNet,
    arch: Architecture | UNetArchitecture,
    *,
    input_shape: tuple[int, ...],
    class_names: tuple[str, ...] | None,
    training: dict[str, Any],
) -> None:
    """Write a network to a safetensors file that is sufficient to rebuild it."""
    description = {
        "architecture": arch.to_dict(),
        "input_shape": input_shape,
        "class_names": class_names,
        "training": training,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()}
    with atomic_write(path) as part:
        part.write_bytes(to_bytes(tensors, metadata={"pprs": json.dumps(description)}))


def _refuse_pickle(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(9)
    is_safetensors = start[8:] == b"{"  # eight bytes with the length of the header, then JSON
    if path.suffix in PICKLES or (not is_safetensors and (start[:2] == b"PK" or start[:1] == b"\x80")):
        raise PprsError(
            "it is a Python pickle, which can run any code when it is read, so it is refused. If you trust it, convert "
            "it once: safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'M.safetensors'). Then "
            "give `model` as module:factory, with a function that builds the network and loads the new file."
        )


def read_description(path: Path) -> dict[str, Any]:
    """Read the description of the network and its training from a weight file."""
    with safe_open(path, framework="pt") as file:
        description: dict[str, Any] = json.loads((file.metadata() or {}).get("pprs", "{}"))
    return description


__all__ = ["Weights", "read_description", "save"]
