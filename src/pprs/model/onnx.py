"""ONNX files, `M.onnx`, run by ONNX Runtime."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs._support.files import suggest_files
from pprs._support.onnx import digest_external_data, open_session, update_digest
from pprs.errors import PprsError
from pprs.model.base import Model
from pprs.model.scores import HALF_ROUNDING
from pprs.model.sidecar import Sidecar, apply_sidecar, parse_sidecar, read_sidecar


class OnnxNetwork(torch.nn.Module):
    """A network in ONNX Runtime. Its weights are not visible to torch, and it may be called from several threads."""

    preserves_input = True

    def __init__(self, file: str | bytes, name: str, output: str | None = None) -> None:
        super().__init__()
        self.session, self.name = open_session(file), name
        self.input = self._check_input()
        self.output = self._choose_output(output)

    def _check_input(self) -> Any:
        inputs = self.session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(i.name for i in inputs)
            raise PprsError(f"the network takes {len(inputs)} inputs ({names}), but a classifier takes only images")
        (tensor,) = inputs
        if tensor.type not in ("tensor(float)", "tensor(float16)"):
            raise PprsError(
                f"the network takes {tensor.type}, but noisy images are floating point. Export it without the step "
                "that converts 8-bit pixels."
            )
        if len(tensor.shape) not in (3, 4):
            raise PprsError(
                f"the network takes an input of shape {tensor.shape}, but images are [B, C, H, W] and signals [B, C, T]"
            )
        shape = tensor.shape[1:]
        self.channels_last = len(shape) == 3 and shape[0] not in (1, 3) and shape[2] in (1, 3)
        self.batch_size = tensor.shape[0] if isinstance(tensor.shape[0], int) and tensor.shape[0] > 0 else None
        self.dtype = np.float16 if tensor.type == "tensor(float16)" else np.float32
        self.rounding = HALF_ROUNDING if self.dtype == np.float16 else 0.0  # relative error of the scores
        return tensor

    def _choose_output(self, requested: str | None) -> str:
        outputs = self.session.get_outputs()
        names = [o.name for o in outputs]
        if requested is not None and requested not in names:
            raise PprsError(f'the network has no output "{requested}". Its outputs are: {", ".join(names)}.')
        if requested is None and len(outputs) > 1:
            raise PprsError(
                f"the network has {len(outputs)} outputs ({', '.join(names)}). Name the one with the scores, for "
                f"example {self.name}:{names[0]}"
            )
        output = outputs[names.index(requested) if requested is not None else 0]
        if len(output.shape) not in (2, 4) or "float" not in output.type:
            raise PprsError(
                f'the output "{output.name}" is {output.type} of shape {output.shape}, but a classifier returns '
                "scores [B, num_classes], and a segmentation network [B, num_classes, H, W]"
            )
        self.task = "classify" if len(output.shape) == 2 else "segment"
        self.num_classes = output.shape[1] if isinstance(output.shape[1], int) else None
        return str(output.name)

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The input shape, [C, H, W] or [C, T], or None if it is not fixed."""
        sizes = tuple(s for s in self.input.shape[1:] if isinstance(s, int))
        if len(sizes) < len(self.input.shape) - 1:
            return None
        return (sizes[2], sizes[0], sizes[1]) if self.channels_last else sizes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = x.detach().cpu().numpy()
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1) if self.channels_last else images, self.dtype)
        if self.batch_size is None:
            return torch.from_numpy(self._run(images)).float()
        parts = []
        for start in range(0, len(images), self.batch_size):  # the batch size is fixed, so the last batch is padded
            part = images[start : start + self.batch_size]
            padding = np.repeat(part[-1:], self.batch_size - len(part), axis=0)
            parts.append(self._run(np.concatenate([part, padding]))[: len(part)])
        return torch.from_numpy(np.concatenate(parts)).float()

    def _run(self, images: Any) -> Any:
        return self.session.run([self.output], {self.input.name: images})[0]


class Onnx:
    """The source for `M.onnx` or, if the network has several outputs, `M.onnx:output`.

    A file M.json next to it, or its metadata under "pprs", may describe it.
    """

    @staticmethod
    def claims(spec: str) -> bool:
        return Onnx._split(spec)[0].suffix == ".onnx"

    @staticmethod
    def _split(spec: str) -> tuple[Path, str | None]:
        name, colon, output = spec.rpartition(":")
        return (Path(name), output) if colon and name.endswith(".onnx") else (Path(spec), None)

    @staticmethod
    def load(spec: str) -> Model:
        path, output = Onnx._split(spec)
        if not path.is_file():
            raise PprsError(f"there is no network file with that name.{suggest_files(str(path))}")
        external = digest_external_data(path)
        net = OnnxNetwork(str(path), str(path), output)
        if external is None:
            raise PprsError("its file cannot be searched for the names of further files. Export it again.")
        sidecar, origin = read_sidecar(path), str(path.with_suffix(".json"))
        metadata = net.session.get_modelmeta().custom_metadata_map.get("pprs")
        if sidecar == Sidecar() and metadata:
            origin = 'its metadata "pprs"'
            sidecar = parse_sidecar(metadata, origin)
        parts = (("external data", external), ("description", sidecar.digest()))
        model = Model(net, spec, net.num_classes, None, net.input_shape, fingerprint=_digest(path), parts=parts)
        model = replace(model, task=net.task)
        return apply_sidecar(model, sidecar, origin)


def _digest(path: Path) -> str:
    """Return a digest of the network and of every nearby file that it names.

    Stored runs are compared by it, so it stays as it is. `digest_external_data` covers files wherever they are.
    """
    network = path.read_bytes()
    sha = hashlib.sha256(network)
    for other in sorted([*path.parent.glob("*"), *path.parent.glob("*/*")]):
        if other.name.encode() in network and other.is_file() and other != path:
            sha.update(other.name.encode())
            update_digest(sha, other)
    return sha.hexdigest()
