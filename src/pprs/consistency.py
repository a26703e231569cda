"""Whether a base classifier is a function of one image, which every certificate assumes.

Some networks are not: their scores of an image depend on the other images of the batch, on earlier calls, or on random
numbers. The votes of such a network are not votes of one classifier, and a certificate from them can be false.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.model.onnx import OnnxNetwork
from pprs.scores import relative_difference
from pprs.voting import Scorer

ALONE = 4  # images that are also scored alone
# The largest difference, relative to the spread of the scores, that different batches may make. Rounding makes 1e-6 in
# most networks, and up to 1e-3 where a processor multiplies with fewer bits.
MAX_DIFFERENCE = 2e-3


def check_function_of_one_image(votes: Scorer, inputs: torch.Tensor) -> float:
    """Raise an error if the scores of an image depend on anything but the image.

    The same images are scored alone, together, among other images, in another order, and again.

    Args:
        votes: The source of votes whose classifier is checked.
        inputs: A few noisy images [B, C, H, W], partitioned as in the run.

    Returns:
        The largest difference found, relative to the spread of the scores. It is due to rounding.

    Raises:
        ConfigurationError: If the differences are too large for rounding. The message names the likely cause.
        PprsError: If the classifier cannot score the images at all.
    """
    model, inputs = votes.model, _limit(inputs, votes).to(votes.device)
    if isinstance(model, torch.nn.Module):
        model.eval()
    with torch.inference_mode():
        together = votes.scores(inputs)
        random_state = torch.get_rng_state()
        again = votes.scores(inputs)
        is_random = not torch.equal(random_state, torch.get_rng_state())
        among_others = [relative_difference(together, scores) for scores in _score_otherwise(votes, inputs)]
        repeated = [relative_difference(together, again), relative_difference(together, votes.scores(inputs))]
    allowed = max(MAX_DIFFERENCE, votes.rounding)
    if max(repeated) > allowed:
        why = "it draws random numbers, as active dropout does" if is_random else "it keeps state from call to call"
        raise _refusal(model, f"differ by {max(repeated):.2g} of their spread when it is called again", why)
    if max(among_others) > allowed:
        raise _refusal(
            model, f"change by {max(among_others):.2g} of their spread when the other images of the batch change",
            "its scores depend on the whole batch",
        )  # fmt: skip
    return max(*among_others, *repeated)


def _limit(inputs: torch.Tensor, votes: Scorer) -> torch.Tensor:
    """Return as many of the images as fit in half a batch, so that no batch is larger than those of the run."""
    return inputs[: max(1, votes.images_per_batch(inputs[0]) // 2)]


def _score_otherwise(votes: Scorer, inputs: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the scores of the images when they are scored alone, and among other images in another order."""
    # Images of another contrast change the statistics of a batch more than further noisy samples would.
    others = torch.cat([2 * inputs[::2], 1 - inputs[1::2]])[: votes.images_per_batch(inputs[0]) - len(inputs)]
    yield votes.scores(torch.cat([others, inputs.flip(0)]))[len(others) :].flip(0)
    alone = []
    for image in inputs[:ALONE]:
        try:
            alone.append(votes.scores(image[None]))
        except PprsError as error:
            raise _refusal(votes.model, "need a batch", f"it cannot score an image alone: {error}") from error
    yield torch.cat([*alone, votes.scores(inputs)[ALONE:]])


def _refusal(model: Any, finding: str, why: str) -> ConfigurationError:
    cause = _find_cause(model) or why
    return ConfigurationError(
        f"the `model` is not a function of one image, so it cannot be certified: its scores of the same image "
        f"{finding}. The likely cause: {cause}.",
        parameter="model",
    )


def _find_cause(model: Any) -> str | None:
    """Find a layer that is known to depend on more than one image."""
    for name, layer in model.named_modules() if isinstance(model, torch.nn.Module) else ():
        where = f"layer {name or type(layer).__name__}"
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None):
            return f"batch normalisation with the statistics of the batch ({where}). Use its running statistics"
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.training:
            return f"dropout is active ({where}). Put the network in eval mode"
        is_dynamic = type(layer).__module__.startswith(("torch.ao.nn.quantized.dynamic", "torch.nn.quantized.dynamic"))
        if is_dynamic or (isinstance(layer, OnnxNetwork) and _is_quantised_dynamically(layer)):
            return "dynamic quantisation, whose scales depend on the whole batch. Quantise the network statically"
    return None


def _is_quantised_dynamically(network: OnnxNetwork) -> bool:
    """Return whether the file has operators such as DynamicQuantizeLinear and DynamicQuantizeMatMul."""
    path = Path(network.name)
    if not path.is_file():
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"DynamicQuantize") >= 0
