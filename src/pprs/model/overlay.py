"""An adaptation in a file: what `pprs adapt` changed in a network, to be laid over that network when it is opened.

It is a safetensors file, so that opening it runs no code. A network and its overlay are named by one text,
`M.safetensors+adapted:A.safetensors`, from which a run, a worker or a verification opens both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from pprs._support.checks import validate
from pprs._support.files import atomic_write
from pprs.denoisers import DenoiserArchitecture, restore_denoiser
from pprs.errors import ConfigurationError, PprsError
from pprs.model.adaptation import FORMAT, METADATA, Adaptation
from pprs.model.base import Model
from pprs.model.changes import Changes

ADAPTED = "+adapted:"
WEIGHTS, BIAS, DENOISER, IMAGES = "weights/", "bias", "denoiser/", "images"
DIGEST_BYTES = 16
MAX_BYTES, MAX_TEXT, MAX_TENSORS = 2**34, 2**22, 2**16  # of a file, of its description, and in a file


Restore = Callable[[Any, dict[str, torch.Tensor]], torch.nn.Module]
# The denoisers that a file may hold, by the names of their classes, each with the function that rebuilds one from
# `denoiser.arch.to_dict()` and its weights. That function checks both, since a file may come from somebody else.
DENOISERS: dict[str, Restore] = {
    "DenoisingNetwork": lambda arch, tensors: restore_denoiser(DenoiserArchitecture.from_dict(arch), tensors)
}


@dataclass(frozen=True)
class Overlay:
    """The changes of an adaptation, with its record and the path of its file, if it has one."""

    adaptation: Adaptation
    changes: Changes = field(default_factory=Changes)
    path: str | None = None

    def digest(self) -> str:
        """Return a digest of the changes and of the network that they belong to."""
        sha = hashlib.sha256(f"{self.adaptation.base_digest} {_describe_denoiser(self.changes)}".encode())
        sha.update(str(self.changes.probabilities).encode())
        for name, tensor in sorted(_tensors(self.changes)):
            sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        return sha.hexdigest()[:16]


def join_adapted(model: str, adapted: str | Path | None) -> str:
    """Return the text that names a network and its overlay.

    >>> join_adapted("m.onnx", "a.safetensors"), join_adapted("m.onnx", None)
    ('m.onnx+adapted:a.safetensors', 'm.onnx')
    """
    return model if adapted is None else f"{model}{ADAPTED}{adapted}"


def split_adapted(text: str) -> tuple[str, str | None]:
    """Return the text of the unadapted network, and that of the overlay or overlays on it.

    >>> split_adapted("m.onnx+adapted:a.safetensors"), split_adapted("m.onnx")
    (('m.onnx', 'a.safetensors'), ('m.onnx', None))
    """
    base, mark, overlays = text.partition(ADAPTED)
    return base, overlays if mark else None


def apply_overlay(model: Model, overlay: Overlay) -> Model:
    """Return the adapted model.

    Args:
        model: The model that was adapted.
        overlay: What was changed.

    Returns:
        The model with the changes. Its digest differs from that of the unadapted model.

    Raises:
        ConfigurationError: If another model was adapted, or if the changes do not fit the network.
    """
    name, adaptation, changes = overlay.path or "the adaptation", overlay.adaptation, overlay.changes
    found = model.digest()
    if found != adaptation.base_digest:
        raise ConfigurationError(
            f"{name} adapts another network: that of {adaptation.base_source}, with the digest "
            f"{adaptation.base_digest}, and {model.source} has the digest {found}. Give the network that was adapted "
            "as `model`, or adapt this one.",
            parameter="adapted",
        )
    _check_fit(name, model, changes)
    digest = overlay.digest()
    return replace(
        model,
        module=changes.apply(model.module),
        source=join_adapted(model.source, overlay.path),
        fingerprint=f"{model.fingerprint} adapted {digest}",
        parts=(*model.parts, ("adaptation", f"{digest} ({', '.join(adaptation.methods) or 'no change'})")),
        adaptation=adaptation,
    )


def _check_fit(name: str, model: Model, changes: Changes) -> None:
    """Check that the changes fit the network."""
    state = model.module.state_dict()
    for key, tensor in changes.weights.items():
        if key not in state or state[key].shape != tensor.shape or state[key].dtype != tensor.dtype:
            own = f"{state[key].dtype} of shape {tuple(state[key].shape)}" if key in state else "none"
            raise ConfigurationError(
                f"{name} has weights {key} of {tensor.dtype} and shape {tuple(tensor.shape)}, but those of "
                f"{model.source} are {own}. Adapt the network again.",
                parameter="adapted",
            )
    if changes.bias is not None and model.num_classes not in (None, len(changes.bias)):
        raise ConfigurationError(
            f"{name} corrects {len(changes.bias)} scores, but {model.source} has {model.num_classes} classes. Adapt "
            "the network again.",
            parameter="adapted",
        )


def save_overlay(overlay: Overlay, path: str | Path) -> Overlay:
    """Write an overlay to a file.

    Args:
        overlay: The overlay.
        path: The file, which is replaced in one step if it exists.

    Returns:
        The overlay with its path.
    """
    record = {k: v for k, v in asdict(overlay.adaptation).items() if k != "image_digests"}
    description = {
        "adaptation": record,
        "probabilities": overlay.changes.probabilities,
        "denoiser": _describe_denoiser(overlay.changes),
    }
    digests = sorted(overlay.adaptation.image_digests)
    tensors = dict(_tensors(overlay.changes))
    tensors[IMAGES] = torch.tensor([list(bytes.fromhex(d)) for d in digests], dtype=torch.uint8).reshape(
        -1, DIGEST_BYTES
    )
    with atomic_write(Path(path)) as part:
        part.write_bytes(to_bytes(tensors, metadata={METADATA: json.dumps(description, sort_keys=True)}))
    return replace(overlay, path=str(path))


def load_overlay(path: str | Path) -> Overlay:
    """Read an overlay from a file. Nothing in the file is run.

    Args:
        path: A file written by `pprs adapt`.

    Returns:
        The overlay.

    Raises:
        PprsError: If there is no such file, or if it is not a complete overlay.
    """
    try:
        return _load(Path(path))
    except PprsError as error:
        # Keep the error's type: a worker that lacks the file must not end a run that other workers can continue.
        raise type(error)(f"`adapted` {path}: {error.message}", parameter="adapted") from error


def _load(path: Path) -> Overlay:
    if not path.is_file():
        raise PprsError(
            "there is no such file. Make one with: pprs adapt --model MODEL --data DATA --sigma NUM --out FILE"
        )
    if path.stat().st_size > MAX_BYTES:
        raise PprsError(f"it has {path.stat().st_size / 1e9:.0f} GB, more than any adaptation that pprs writes")
    try:
        with safe_open(path, framework="pt") as file:
            text = _find_description(file.metadata() or {})
            names = list(file.keys())
            if len(names) > MAX_TENSORS:
                raise PprsError(f"it has {len(names)} tensors, more than any adaptation that pprs writes")
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise PprsError(
            f"it is not a complete safetensors file ({error}). Copy it again, or repeat `pprs adapt`."
        ) from error
    try:
        description = _parse_description(text)
        adaptation = _read_adaptation(description, tensors.pop(IMAGES, torch.empty(0)))
        changes = _read_changes(description, tensors)
    except (TypeError, KeyError, RuntimeError, ValueError, RecursionError) as error:
        raise PprsError(f"its content does not match its description ({error}). Repeat `pprs adapt`.") from error
    return Overlay(adaptation, changes, str(path))


def _find_description(metadata: Mapping[str, str]) -> str:
    text = metadata.get(METADATA)
    if text is None:
        kind = "a network, which is given as `model`" if "pprs" in metadata else "weights of another kind"
        raise ConfigurationError(f"it was not written by `pprs adapt`: it contains {kind}")
    if len(text) > MAX_TEXT:
        raise PprsError(f"its description has {len(text)} characters, more than any that pprs writes")
    return text


def _parse_description(text: str) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(text)
    version = description["adaptation"]["format"]
    if version != FORMAT:
        raise ConfigurationError(
            f"it has the format {version}, but this version of pprs reads format {FORMAT}. Use the version that wrote "
            "it."
        )
    return description


def _read_adaptation(description: Mapping[str, Any], digests: torch.Tensor) -> Adaptation:
    adaptation = validate(Adaptation, description["adaptation"], "its description")
    if digests.dtype != torch.uint8 or digests.ndim != 2 or digests.shape[1] != DIGEST_BYTES:
        raise ValueError(f"the digests of its images are {digests.dtype} of shape {tuple(digests.shape)}")
    return replace(adaptation, image_digests=frozenset(bytes(row).hex() for row in digests.numpy()))


def _read_changes(description: Mapping[str, Any], tensors: dict[str, torch.Tensor]) -> Changes:
    bias = tensors.pop(BIAS, None)
    if bias is not None and (bias.dtype != torch.float32 or bias.ndim != 1 or not bool(bias.isfinite().all())):
        raise ValueError("its bias is not a list of finite numbers")
    weights = {n.removeprefix(WEIGHTS): tensors.pop(n) for n in list(tensors) if n.startswith(WEIGHTS)}
    state = {n.removeprefix(DENOISER): tensors.pop(n) for n in list(tensors) if n.startswith(DENOISER)}
    if tensors:
        raise ValueError(f"unknown tensor {next(iter(tensors))}")
    return Changes(
        weights, bias, _restore_denoiser(description["denoiser"], state), description["probabilities"] is True
    )


def _describe_denoiser(changes: Changes) -> dict[str, Any] | None:
    denoiser: Any = changes.denoiser
    if denoiser is None:
        return None
    name = type(denoiser).__name__
    if name not in DENOISERS:
        raise PprsError(f"a denoiser of the type {name} cannot be stored")
    return {"type": name, "architecture": denoiser.arch.to_dict()}


def _restore_denoiser(description: Mapping[str, Any] | None, state: dict[str, torch.Tensor]) -> torch.nn.Module | None:
    if description is None:
        return None
    name = str(description["type"])
    if name not in DENOISERS:
        raise PprsError(f'its denoiser is a "{name}", which this version of pprs does not know')
    return DENOISERS[name](description["architecture"], state)


def _tensors(changes: Changes) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of the changes with their names in the file."""

    def plain(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().cpu().contiguous().clone()  # a file cannot hold tensors that share memory

    for name, tensor in changes.weights.items():
        yield f"{WEIGHTS}{name}", plain(tensor)
    if changes.bias is not None:
        yield BIAS, plain(changes.bias)
    if changes.denoiser is not None:
        for name, tensor in changes.denoiser.state_dict().items():
            yield f"{DENOISER}{name}", plain(tensor)
