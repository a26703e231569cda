"""Whether a base classifier is a function of one image, and stays the same one, which every certificate assumes.

Some networks are not: their scores of an image depend on the other images of the batch, on earlier calls, or on random
numbers. The votes of such a network are not votes of one classifier, and a certificate from them can be false.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.model.onnx import OnnxNetwork
from pprs.scores import relative_difference, spread
from pprs.voting import BaseClassifier, Scorer

ALONE = 4  # images that are also scored alone
ATTEMPTS = 3  # to score an image again
# The largest difference, relative to the spread of the scores, that different batches may make. Rounding makes 1e-6 in
# most networks, and up to 1e-3 where a processor multiplies with fewer bits.
MAX_DIFFERENCE = 2e-3


def check_function_of_one_image(votes: Scorer, inputs: torch.Tensor) -> float:
    """Raise an error if the scores of an image depend on anything but the image.

    The same images are scored alone, together, among other images, in another order, and again, in batches as large as
    those of a run: some networks, such as mixtures of experts with a capacity, treat images differently only there.

    Args:
        votes: The source of votes whose classifier is checked.
        inputs: A few noisy images [B, C, H, W], partitioned as in the run. They are repeated to fill a batch.

    Returns:
        The largest difference found, relative to the spread of the scores. It is due to rounding.

    Raises:
        ConfigurationError: If the differences are too large for rounding, or if the classifier cannot score so many
            images together. The message names the likely cause.
        PprsError: If the classifier cannot score the images at all.
    """
    model, size = votes.model, votes.images_per_batch(inputs[0])
    batch = inputs.repeat(-(-size // len(inputs)), *[1] * (inputs.ndim - 1))[:size].to(votes.device)
    if isinstance(model, torch.nn.Module):
        model.eval()
    with torch.inference_mode():
        together = _score_full_batch(votes, batch)
        random_state = torch.get_rng_state()
        again = votes.scores(batch)
        is_random = not torch.equal(random_state, torch.get_rng_state())
        among_others = [
            relative_difference(together[places], scores) for places, scores in _score_otherwise(votes, batch, together)
        ]
        repeated = [relative_difference(together, again), relative_difference(together, votes.scores(batch))]
    allowed = _find_allowed(votes)
    if max(repeated) > allowed:
        why = "it draws random numbers, as active dropout does" if is_random else "it keeps state from call to call"
        raise _refusal(model, f"differ by {max(repeated):.2g} of their spread when it is called again", why)
    if max(among_others) > allowed:
        raise _refusal(
            model, f"change by {max(among_others):.2g} of their spread when the other images of the batch change",
            "its scores depend on the whole batch",
        )  # fmt: skip
    return max(*among_others, *repeated)


def _find_allowed(votes: Scorer) -> float:
    return max(MAX_DIFFERENCE, votes.rounding)


def _score_full_batch(votes: Scorer, batch: torch.Tensor) -> torch.Tensor:
    """Return the scores of a batch as large as those of a run. If that fails, say which size works."""
    try:
        return votes.scores(batch)
    except (PprsError, MemoryError) as error:
        size = len(batch) // 2
        while size and not _can_score(votes, batch[:size]):
            size //= 2
        if not size:
            raise
        reason = error.message if isinstance(error, PprsError) else f"out of memory ({error})"
        raise ConfigurationError(
            f"the `model` cannot score {len(batch)} images together, as it would have to: {reason} It can score "
            f"{size}: give {size} as `batch_size`.",
            parameter="batch_size",
        ) from error


def _can_score(votes: Scorer, images: torch.Tensor) -> bool:
    try:
        votes.scores(images)
    except (PprsError, MemoryError):
        return False
    return True


def _score_otherwise(
    votes: Scorer, batch: torch.Tensor, together: torch.Tensor
) -> Iterator[tuple[slice | list[int], torch.Tensor]]:
    """Yield the places of images of a batch, and their scores when they are scored otherwise.

    They are scored at the other end of a batch, among images of another contrast, which change the statistics of a
    batch more than further noisy samples would, and alone.
    """
    half = (len(batch) + 1) // 2
    first, second = batch[:half], batch[half:]
    yield slice(half), votes.scores(torch.cat([1 - second, first.flip(0)]))[len(second) :].flip(0)
    if len(second):
        others = torch.cat([2 * first[::2], 1 - first[1::2]])
        yield slice(half, None), votes.scores(torch.cat([second.flip(0), others]))[: len(second)].flip(0)
    places = sorted({round(i * (len(batch) - 1) / max(ALONE - 1, 1)) for i in range(ALONE)})
    alone = together.clone()  # beside the others, so that differences are relative to the spread of all scores
    for place in places:
        try:
            alone[place] = votes.scores(batch[place : place + 1])[0]
        except PprsError as error:
            raise _refusal(votes.model, "need a batch", f"it cannot score an image alone: {error}") from error
    yield slice(None), alone


class Watch:
    """Tells whether a base classifier is still the function that it was when the watch began.

    A network that drifts slowly, such as one that keeps a moving average, passes every check at the start of a run. So
    it is asked the same question again later, and its parameters and buffers are compared.

    Args:
        votes: The source of votes whose classifier is watched.
        inputs: A few noisy images [B, C, H, W], partitioned as in the run.
    """

    def __init__(self, votes: Scorer, inputs: torch.Tensor) -> None:
        self._votes, self._inputs, self._lock = votes, inputs.to(votes.device), threading.Lock()
        self._state, self._scores = digest_tensors(votes.model), self._score()

    def _score(self) -> torch.Tensor:
        with torch.inference_mode():
            return self._votes.scores(self._inputs)

    def _score_again(self) -> torch.Tensor:
        """Return the scores, if need be at a later attempt: a network behind an API may fail to answer once."""
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(PprsError, MemoryError):
                return self._score()
        return self._score()

    def confirm(self) -> None:
        """Raise an error if the classifier has changed. What was counted since the last call is then worth nothing.

        Raises:
            ConfigurationError: If scores, parameters or buffers are others than at the start.
        """
        with self._lock:
            state = digest_tensors(self._votes.model)
            changed = sorted(name for name in self._state.keys() | state if self._state.get(name) != state.get(name))
            difference = relative_difference(self._scores, self._score_again())
        if changed:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise _change(self._votes.model, f"its parameters or buffers changed ({changed[0]}{more})")
        # Labels that a smaller difference could change are near ties, whose images are scored alone.
        if difference > max(self._votes.near_tie, self._votes.rounding):
            raise _change(self._votes.model, _describe_drift(difference))


def digest_tensors(model: BaseClassifier) -> dict[str, bytes]:
    """Return a digest of each parameter and buffer of a network, by name. Other functions have none."""
    if not isinstance(model, torch.nn.Module):
        return {}
    digests = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digests[name] = hashlib.sha256(values.data).digest()
    return digests


class FirstBatch:
    """Checks a base classifier on the first batch that it scores for votes, before they are counted.

    The scores of that batch are needed anyway, so the check costs only a few images that are scored again. It is done
    again if a later batch is larger. One image is scored once more when the votes are counted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = 0  # of the largest batch that was checked
        self._versions: list[tuple[int, int | None]] = []  # of the tensors when it was checked
        self._probe: tuple[torch.Tensor, torch.Tensor, float] | None = None  # an image, its scores, and their scale

    def begin(self, votes: Scorer) -> None:
        """Check the classifier anew if it was changed since the last check: the caller may have trained it."""
        if self._versions != _list_versions(votes.model):
            self._size, self._probe = 0, None

    def accept(self, votes: Scorer, image: torch.Tensor) -> None:
        """Take the classifier as checked, and remember its scores of an image [1, C, H, W]."""
        versions, image = _list_versions(votes.model), image.to(votes.device)
        with torch.inference_mode():
            scores = votes.scores(image)
        self._probe, self._versions = (image, scores, float(spread(scores).mean())), versions
        self._size = votes.images_per_batch(image[0])

    def check(self, votes: Scorer, images: torch.Tensor, scores: torch.Tensor) -> None:
        """Check the classifier, unless that is done: score some images of a batch again among fewer others.

        Args:
            votes: The source of votes whose classifier is checked.
            images: A batch whose votes will be counted.
            scores: Its scores.

        Raises:
            ConfigurationError: If the classifier is not a function of one image.
        """
        if len(images) <= self._size:
            return
        with self._lock:
            if len(images) <= self._size:
                return
            versions, last, scale = _list_versions(votes.model), images[-1:].clone(), float(spread(scores).mean())
            try:
                alone = votes.scores(last)
            except PprsError:
                check_function_of_one_image(votes, images)  # says that it needs a batch
                raise
            difference = relative_difference(scores[-1:], alone, scale)
            if len(images) > 2:  # scored together, which costs hardly more than one alone
                pair = [0, len(images) // 2]
                difference = max(difference, relative_difference(scores[pair], votes.scores(images[pair]), scale))
            if difference > _find_allowed(votes):
                check_function_of_one_image(votes, images)  # finds the cause
                raise _refusal(
                    votes.model, f"change by {difference:.2g} of their spread when it is scored among other images",
                    "its scores depend on the whole batch or on earlier calls",
                )  # fmt: skip
            votes.settle_alone(difference)
            if self._probe is None:
                self._probe, self._versions = (last, alone, scale), versions
            self._size = len(images)

    def confirm(self, votes: Scorer) -> None:
        """Raise an error if the classifier has changed since it was checked.

        Raises:
            ConfigurationError: If it has. What was counted since is then worth nothing.
        """
        if self._probe is None:
            return
        image, expected, scale = self._probe
        with torch.inference_mode():
            difference = relative_difference(expected, votes.scores(image), scale)
        if difference > max(votes.near_tie, votes.rounding):
            raise _change(votes.model, _describe_drift(difference))
        if self._versions != _list_versions(votes.model):
            raise _change(votes.model, "its parameters or buffers changed")


@contextlib.contextmanager
def checked(votes: Scorer) -> Iterator[None]:
    """Check a classifier on the first batch that is scored for votes in this block, and once more at its end.

    Raises:
        ConfigurationError: If it is not a function of one image, or not the same one at the end.
    """
    check = votes.batch_check
    if check is not None:
        check.begin(votes)
    yield
    if check is not None:
        check.confirm(votes)


def _list_versions(model: BaseClassifier) -> list[tuple[int, int | None]]:
    """Return what shows at no cost that a tensor of a network was replaced or written to."""
    if not isinstance(model, torch.nn.Module):
        return []
    tensors = (*model.parameters(), *model.buffers())
    return [(id(tensor), None if tensor.is_inference() else tensor._version) for tensor in tensors]


def _describe_drift(difference: float) -> str:
    return f"its scores of the same image changed by {difference:.2g} of their spread"


def _change(model: Any, finding: str) -> ConfigurationError:
    cause = _find_cause(model) or "it keeps state from call to call, as moving averages and test-time adaptation do"
    return ConfigurationError(
        f"the `model` is not one function, so it cannot be certified: {finding} while its votes were counted. The "
        f"likely cause: {cause}. What was counted since the last check that agreed is not used.",
        parameter="model",
    )


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
