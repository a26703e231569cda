from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from pprs._support.threads import parallel_for_on_pool
from pprs.denoisers import DIGITS, KINDS, FileDenoiser, NetworkDenoiser, digest_denoiser, open_denoiser
from pprs.errors import PprsError, suggest
from pprs.partition.base import AUTO, Averaged, Partition, check_between, option_error

DIGEST = re.compile(f"[0-9a-f]{{{DIGITS}}}")
MARGIN = 1.1  # by which sigma may lie outside the range that a denoiser was trained for


@dataclass(frozen=True)
class Denoiser(Partition):
    """A denoising network in a file, which receives the noisy image and, if it takes one, the sigma of the noise.

    It is one fixed function of the noisy image, like every partition: images go through it one at a time, in memory of
    their own and on one thread, so that not even the last digit depends on the batch. The file is read when the
    partition is resolved or run, not when it is created. A resolved partition holds a digest of the file, and runs with
    no other.

    Args:
        file: `D.safetensors` as `pprs adapt` or `save_denoiser` write it, `D.onnx`, or a folder of a diffusion model
            that diffusers wrote.
        sigma: The sigma that the denoiser receives, or "auto" for that of the noise. Where no noise is known, "auto" is
            the middle of the range that it was trained for.
        kind: What the network in an ONNX file returns: "image" for the clean image, "epsilon" for the noise of a
            diffusion model, which is then used for one step. By default, what its description says, or else "image".
        digest: A digest of the file, which `resolve` sets.

    >>> str(Denoiser("models/d.onnx", kind="epsilon"))
    'denoiser:models/d.onnx,sigma=auto,kind=epsilon'
    """

    name = "denoiser"
    keeps_constants = False
    defaults: ClassVar[dict[str, Any]] = {"sigma": None}  # depends on the file: see with_defaults

    file: str
    sigma: float | Any = AUTO
    kind: str | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        name = self.file
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or '"' in name:
            raise option_error(f"a denoiser needs the name of its file, without quotes or control characters: {name!r}")
        check_between(self.sigma, 1e-4, 1e3, "sigma", "it is the standard deviation of the noise")
        if self.kind is not None and self.kind not in KINDS:
            raise option_error(f'unknown kind of denoiser "{self.kind}". {suggest(str(self.kind), KINDS)}')
        if self.digest is not None and not DIGEST.fullmatch(str(self.digest)):
            raise option_error(f'"{self.digest}" is not the digest of a file, which has {DIGITS} hexadecimal digits')

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file,)

    @property
    def takes_sigma(self) -> bool:
        """Whether the result depends on sigma, according to the file."""
        return self._load().takes_sigma

    def bind_files(self) -> Self:
        return self if self.digest is not None else self._replace({"digest": digest_denoiser(self.file)})

    def with_file(self, file: str, digest: str) -> Self:
        return self._replace({"file": file}) if self.digest == digest else self

    def without_paths(self) -> Self:
        return self if self.digest is None else self._replace({"file": self.name})

    def resolve(self, sigma: float, shape: tuple[int, ...]) -> Self:
        """Return a copy for noise of this sigma on images [C, H, W], with the digest of its file.

        Raises:
            ConfigurationError: If the file cannot be used, or was trained for other noise.
            PprsError: If it is for images with other channels.
        """
        if self.digest is not None and self.sigma != AUTO:
            return self  # nothing is missing, so that the file is not read before it is needed
        bound = self.bind_files()
        loaded = bound._load()
        if loaded.channels not in (None, 1, shape[0]):
            raise PprsError(  # of this image, which others of the data may not share
                f"denoiser {self.file} is for images of {loaded.channels} channels, and this one has {shape[0]}. Train "
                "one for such images.",
                parameter="partition",
            )
        if self.sigma != AUTO:
            return bound
        low, high = loaded.sigmas or (sigma, sigma)
        if loaded.takes_sigma and not low / MARGIN <= sigma <= high * MARGIN:
            raise option_error(
                f"denoiser {self.file} was trained for noise of sigma {low:g} to {high:g}, not {sigma:g}. Train one "
                f"for this noise, or give the sigma that it is to assume: denoiser:{self.file},sigma={high:g}"
            )
        return bound._replace({"sigma": float(sigma)})

    def with_defaults(self) -> Self:
        if self.sigma != AUTO:
            return self
        loaded = self._load()
        sigmas = loaded.sigmas if loaded.takes_sigma else (1.0, 1.0)  # any, since it is not used
        if sigmas is None:
            raise option_error(
                f"the noise is not known, and the file does not say what it was trained for. Give denoiser:{self.file},"
                "sigma=0.25, for example."
            )
        return self._replace({"sigma": (sigmas[0] * sigmas[1]) ** 0.5})

    def pull_back(self, noisy: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor | None:
        """Turn the gradient with respect to the denoised images into that with respect to the noisy ones.

        It is None if the network cannot be differentiated here.
        """
        loaded = self._load()
        if not isinstance(loaded, NetworkDenoiser):
            return None
        with torch.enable_grad():
            inputs = noisy.cpu().clone().requires_grad_()
            (exact,) = torch.autograd.grad(loaded.net(inputs, self.sigma), inputs, gradient.cpu())
        return exact.to(noisy.device)

    def _load(self) -> FileDenoiser:
        return open_denoiser(self.file, self.kind, self.digest)

    def _run_cpu(self, noisy: torch.Tensor) -> Averaged:
        denoiser, denoised = self._load(), torch.empty_like(noisy)

        def task(first: int, stop: int) -> None:
            for i in range(first, stop):
                denoised[i] = denoiser.denoise(noisy[i], self.sigma)

        parallel_for_on_pool(task, len(noisy))
        return denoised, None
