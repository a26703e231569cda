"""`pprs adapt`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pprs import adaptation
from pprs.cli import options
from pprs.cli.console import progress, say
from pprs.cli.errors import guarded
from pprs.cli.options import Panel
from pprs.data import Selection
from pprs.dither import check_unused, is_dither
from pprs.errors import ConfigurationError
from pprs.inputs.space import FILE
from pprs.noise import Gaussian, Noise, noise_of
from pprs.partition import AUTO
from pprs.patches import FILL, MASKS, adapt_to_masks

Out = Annotated[
    Path,
    options.option(
        "--out", "FILE", Panel.OUTPUT, "File for the adaptation: A.safetensors. Repeat the command to continue it."
    ),
]
Method = Annotated[
    Literal["auto", "statistics", "bias", "denoiser", "distill"],
    options.option(
        "--method",
        "NAME",
        Panel.SAMPLING,
        "statistics (of batch normalisation), bias (of the output), denoiser, distill (the classifier's own clean "
        "predictions), or auto, which keeps what helps on held-back images.",
    ),
]
Patch = Annotated[
    int | None,
    options.option(
        "--patch", "INT", Panel.MASKS, "Adapt to the masks of `pprs patch` for a patch of this side, instead of noise."
    ),
]
Budget = Annotated[
    str,
    options.option(
        "--budget", "TIME", Panel.SAMPLING,
        "How long to adapt: 90s, 5m, 1h. With --method distill also a number of perturbed images: 256000samples.",
    ),
]  # fmt: skip
Split = Annotated[str | None, options.option("--split", "NAME", Panel.INPUT, "Split of the data. Default: train.")]
Limit = Annotated[
    int, options.option("--limit", "INT", Panel.IMAGES, "Maximum number of images, which are drawn at random.")
]

Pixels = Annotated[
    Literal["network", "file"],
    options.option(
        "--pixels", "NAME", Panel.NOISE, "What noise is added to: only network, the network's input after resizing."
    ),
]
Device = Annotated[str, options.option("--device", "NAME", Panel.SPEED, "Only cpu, where adapting runs.")]


@guarded
def adapt(
    model: options.Model,
    data: options.Data,
    out: Out,
    sigma: options.Sigma = None,
    partition: options.PartitionText = AUTO,
    noise: options.NoiseText = Gaussian.name,
    pixels: Pixels = "network",
    patch: Patch = None,
    masks: options.Masks = MASKS,
    fill: options.FillText = FILL,
    method: Method = "auto",
    budget: Budget = adaptation.BUDGET,
    split: Split = None,
    limit: Limit = adaptation.LIMIT,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    device: Device = "cpu",
) -> None:
    """Adapt a network to its noise and partition, or to the masks of a patch, with unlabelled images.

    Labels, if there are any, are not read. Give images that you do not certify.

    Example: pprs adapt --model M.safetensors --data mnist --sigma 0.5 --partition slic/soft --out A.safetensors
    """
    _check_supported(pixels, device)
    images = Selection(limit=limit)
    options.set_threads(threads)
    if patch is not None:
        _check_masks(sigma, noise, partition, method)
        adapt_to_masks(
            model, data, patch=patch, masks=masks, fill=fill, out=out, budget=budget, images=images, seed=seed,
            progress=progress, split=split,
        )  # fmt: skip
        say(f"wrote {out}. Use it with: pprs patch --model {model} --adapted {out} --patch {patch} ...")
        return
    adaptation.adapt(
        model, data, noise=_choose_noise(noise, sigma), partition=partition, out=out, method=method, budget=budget,
        images=images, seed=seed, progress=progress, split=split,
    )  # fmt: skip
    use = f"--noise {noise} ..." if is_dither(noise) else "... (if it labels every pixel, with pprs segment)"
    say(f"wrote {out}. Use it with: pprs certify --model {model} --adapted {out} {use}")


def _choose_noise(name: str, sigma: float | None) -> Noise | str:
    """Return the noise, or thresholds as text."""
    if is_dither(name):
        check_unused(name, sigma=(sigma, None))
        return name
    if sigma is None:
        raise ConfigurationError(
            "give the `sigma` of the noise, or a `patch` to whose masks the classifier is adapted", parameter="sigma"
        )
    return noise_of(name, sigma)


def _check_supported(pixels: str, device: str) -> None:
    """Refuse what other commands offer and adapting does not."""
    if pixels == FILE:
        raise ConfigurationError(
            "a classifier is adapted to noise on the network's input, not on the pixels of the files. Leave out "
            "`pixels`. The adapted classifier can be used with --pixels file, though its radii may be smaller there.",
            parameter="pixels",
        )
    if device != "cpu":
        raise ConfigurationError(
            f'adapting runs on the CPU, not on "{device}". Leave out `device`. The adapted classifier can be used on '
            "any device.",
            parameter="device",
        )


def _check_masks(sigma: float | None, noise: str, partition: str, method: str) -> None:
    """Refuse options that an adaptation to masks does not have."""
    for name, given in (
        ("sigma", sigma is not None),
        ("noise", noise != Gaussian.name),
        ("partition", partition != AUTO),
    ):
        if given:
            raise ConfigurationError(
                f"a classifier is adapted to noise or to masks, not to both: leave out `{name}` or `patch`",
                parameter=name,
            )
    if method not in ("auto", "distill"):
        raise ConfigurationError(f"a classifier is adapted to masks by distill, not by {method}", parameter="method")
