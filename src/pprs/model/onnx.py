"""An ONNX file: `M.onnx`, run by ONNX Runtime as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs.errors import PprsError
from pprs.model.base import Model
from pprs.model.sidecar import Sidecar, apply_sidecar, parse_sidecar, read_sidecar


class OnnxNetwork(torch.nn.Module):
    """A network in ONNX Runtime. It holds no weights that torch could see, and may be called from several threads.

    A session has one thread of its own and none that spin: batches run side by side on the pool.
    """

    leaves_input_alone = True

    def __init__(self, file: str | bytes, where: str, output: str | None = None) -> None:
        super().__init__()
        runtime = require_runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self.session = runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its own kinds, all of them about the file
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise PprsError(f"the file cannot be read as an ONNX network ({reason}). Is it complete?") from error
        self.where = where
        self.input = self._input()
        self.output = self._output(output)

    def _input(self) -> Any:
        inputs = self.session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(i.name for i in inputs)
            raise PprsError(f"the network takes {len(inputs)} inputs ({names}); a classifier takes one, the pictures")
        (taken,) = inputs
        if taken.type not in ("tensor(float)", "tensor(float16)"):
            raise PprsError(
                f"the network takes {taken.type}; noise needs floating point. Export it without the step that converts "
                "8-bit pixels."
            )
        if len(taken.shape) != 4:
            raise PprsError(f"the network takes an input of shape {taken.shape}; pictures are [B, C, H, W]")
        shape = taken.shape[1:]
        self.last = shape[0] not in (1, 3) and shape[2] in (1, 3)  # channels last
        self.batch = taken.shape[0] if isinstance(taken.shape[0], int) and taken.shape[0] > 0 else None
        self.kind = np.float16 if taken.type == "tensor(float16)" else np.float32
        return taken

    def _output(self, wanted: str | None) -> str:
        outputs = self.session.get_outputs()
        names = [o.name for o in outputs]
        if wanted is not None and wanted not in names:
            raise PprsError(f'the network has no output "{wanted}"; it has {", ".join(names)}')
        if wanted is None and len(outputs) > 1:
            raise PprsError(
                f"the network has {len(outputs)} outputs ({', '.join(names)}). Say which holds the scores, for example "
                f"{self.where}:{names[0]}"
            )
        chosen = outputs[names.index(wanted) if wanted is not None else 0]
        if len(chosen.shape) != 2 or "float" not in chosen.type:
            raise PprsError(
                f'the output "{chosen.name}" is {chosen.type} of shape {chosen.shape}; a classifier gives scores '
                "[B, classes]"
            )
        self.classes = chosen.shape[1] if isinstance(chosen.shape[1], int) else None
        return str(chosen.name)

    @property
    def input_shape(self) -> tuple[int, int, int] | None:
        sizes = [s for s in self.input.shape[1:] if isinstance(s, int)]
        if len(sizes) < 3:
            return None
        return (sizes[2], sizes[0], sizes[1]) if self.last else (sizes[0], sizes[1], sizes[2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pictures = x.detach().cpu().numpy()
        pictures = np.ascontiguousarray(pictures.transpose(0, 2, 3, 1) if self.last else pictures, self.kind)
        if self.batch is None:
            return torch.from_numpy(self._run(pictures)).float()
        parts = []
        for first in range(0, len(pictures), self.batch):  # the batch is fixed: the last one is filled up
            part = pictures[first : first + self.batch]
            spare = np.repeat(part[-1:], self.batch - len(part), axis=0)
            parts.append(self._run(np.concatenate([part, spare]))[: len(part)])
        return torch.from_numpy(np.concatenate(parts)).float()

    def _run(self, pictures: Any) -> Any:
        return self.session.run([self.output], {self.input.name: pictures})[0]


def require_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise PprsError("ONNX Runtime is not installed. Install it with: pip install 'pprs[onnx]'") from None
    return onnxruntime


class Onnx:
    """The source for `M.onnx` or, where it has several outputs, `M.onnx:output`.

    M.json beside it, or its own metadata under "pprs", may describe it.
    """

    @staticmethod
    def claims(spec: str) -> bool:
        return Onnx._path(spec)[0].suffix == ".onnx"

    @staticmethod
    def _path(spec: str) -> tuple[Path, str | None]:
        name, colon, output = spec.rpartition(":")
        return (Path(name), output) if colon and name.endswith(".onnx") else (Path(spec), None)

    @staticmethod
    def load(spec: str) -> Model:
        path, output = Onnx._path(spec)
        if not path.is_file():
            raise PprsError("there is no network file by that name")
        net = OnnxNetwork(str(path), str(path), output)
        sidecar, where = read_sidecar(path), str(path.with_suffix(".json"))
        inside = net.session.get_modelmeta().custom_metadata_map.get("pprs")
        if sidecar == Sidecar() and inside:
            where = 'its metadata "pprs"'
            sidecar = parse_sidecar(inside, where)
        model = Model(net, spec, net.classes, None, net.input_shape, fingerprint=_digest(path))
        return apply_sidecar(model, sidecar, where)


def _digest(path: Path) -> str:
    """Over the network and every file beside it that it names: the weights of large networks lie there."""
    network = path.read_bytes()
    sha = hashlib.sha256(network)
    for other in sorted([*path.parent.glob("*"), *path.parent.glob("*/*")]):
        if other.name.encode() in network and other.is_file() and other != path:
            sha.update(other.name.encode())
            with other.open("rb") as file:
                while block := file.read(2**24):
                    sha.update(block)
    return sha.hexdigest()
