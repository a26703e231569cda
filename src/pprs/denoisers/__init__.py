"""Denoisers in files: our own safetensors, ONNX, and diffusion models. `denoiser:FILE` names one as a partition."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch

from pprs._support.onnx import digest_external_data, update_digest
from pprs.denoisers.base import FileDenoiser
from pprs.denoisers.diffusers import DiffusersDenoiser, list_files
from pprs.denoisers.network import (
    DenoiserArchitecture,
    DenoisingNetwork,
    load_denoiser,
    restore_denoiser,
    save_denoiser,
)
from pprs.denoisers.onnx import EPSILON, IMAGE, KINDS, OnnxDenoiser, check_kind, parse_description
from pprs.denoisers.schedule import Schedule, denoise_in_one_step
from pprs.errors import ConfigurationError, PprsError, describe_error

DIGITS = 32  # of a digest: 128 bits, so that nobody can make two files with the same one
MAX_NETWORK = 2**28  # bytes of a network of ours; the largest architecture has fewer


class NetworkDenoiser(FileDenoiser):
    """A network of ours."""

    def __init__(self, net: DenoisingNetwork) -> None:
        super().__init__()
        self.net, self.channels, self.sigmas = net, net.arch.channels, (net.arch.low, net.arch.high)

    def _denoise(self, noisy: torch.Tensor, sigma: float) -> torch.Tensor:
        result: torch.Tensor = self.net(noisy, sigma)
        return result


def digest_denoiser(file: str) -> str:
    """Return a digest of everything that a denoiser is read from: its file, tensors in other files, its description."""
    with _naming(file):
        path = _check_path(file)
        sha = hashlib.sha256()
        for part in list_files(path) if path.is_dir() else [path]:
            update_digest(sha, part)
        if path.suffix == ".onnx":
            external, described = digest_external_data(path), path.with_suffix(".json")
            sha.update(b"" if external is None or external == "none" else external.encode())
            sha.update(described.read_bytes() if described.is_file() else b"")
        return sha.hexdigest()[:DIGITS]


def open_denoiser(file: str, kind: str | None = None, digest: str | None = None) -> FileDenoiser:
    """Open a denoiser.

    Args:
        file: `D.safetensors` as `save_denoiser` writes it, `D.onnx`, or a folder of a diffusion model of diffusers.
        kind: What a network in an ONNX file returns, "image" or "epsilon". By default, what its description says.
        digest: The digest that its content must have. A file with another one is not parsed.

    Raises:
        ConfigurationError: If the file is missing, damaged or of another kind, or has another digest.
    """
    return _open(file, kind, digest_denoiser(file) if digest is None else digest)


@functools.lru_cache(maxsize=8)
def _open(file: str, kind: str | None, digest: str) -> FileDenoiser:
    found = digest_denoiser(file)
    if found != digest:
        raise ConfigurationError(
            f"{file} is another denoiser than before: its digest is {found}, not {digest}. Put the file back, or leave "
            "out the digest and start a new run.",
            parameter="partition",
        )
    with _naming(file):
        path = Path(file)
        if path.suffix == ".onnx":
            described = path.with_suffix(".json")
            content = described.read_bytes() if described.is_file() else None
            return OnnxDenoiser(
                str(path), kind, None if content is None else parse_description(content, str(described))
            )
        if kind is not None:
            raise PprsError('"kind" says what the network in an ONNX file returns. Leave it out for other files.')
        return DiffusersDenoiser(path) if path.is_dir() else NetworkDenoiser(load_denoiser(path.read_bytes()))


def _check_path(file: str) -> Path:
    """Return the path of a denoiser after checking that it may be one, before anything is read."""
    path = Path(file)
    if path.is_dir():
        return path
    if not path.is_file():  # neither are devices and pipes
        raise PprsError("there is no such file. Give the path of a .safetensors or .onnx file.")
    if path.suffix not in (".safetensors", ".onnx"):
        raise PprsError("a denoiser is a .safetensors or .onnx file, or a folder of diffusers")
    if path.suffix == ".safetensors" and path.stat().st_size > MAX_NETWORK:
        raise PprsError(f"it has {path.stat().st_size / 1e6:.0f} MB, more than any denoiser of pprs")
    return path


@contextlib.contextmanager
def _naming(file: str) -> Iterator[None]:
    """Name the file in errors."""
    try:
        yield
    except (PprsError, OSError) as error:
        raise ConfigurationError(f"denoiser {file}: {describe_error(error)}", parameter="partition") from error


__all__ = [
    "EPSILON",
    "IMAGE",
    "KINDS",
    "DenoiserArchitecture",
    "DenoisingNetwork",
    "FileDenoiser",
    "NetworkDenoiser",
    "Schedule",
    "check_kind",
    "denoise_in_one_step",
    "digest_denoiser",
    "load_denoiser",
    "open_denoiser",
    "restore_denoiser",
    "save_denoiser",
]
