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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.model.modes import eval_mode
from pprs.model.onnx import OnnxNetwork
from pprs.model.scores import relative_difference, spread
from pprs.smoothing.voting import BaseClassifier, Scorer

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
    with torch.inference_mode(), eval_mode(model):
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
        _check_drift(self._votes, difference)


def digest_tensors(model: BaseClassifier) -> dict[str, bytes]:
    """Return a digest of each parameter and buffer of a network, by name. Other functions have none."""
    if not isinstance(model, torch.nn.Module):
        return {}
    digests = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digests[name] = hashlib.sha256(values.data).digest()
    return digests


@dataclass(frozen=True)
class _Probe:
    """A noisy image [1, C, H, W], its scores when it was first scored, and the mean spread of the scores then."""

    image: torch.Tensor
    scores: torch.Tensor
    scale: float

    def difference(self, scores: torch.Tensor) -> float:
        return relative_difference(self.scores, scores, self.scale)


class FirstBatch:
    """Checks a base classifier while it scores batches for votes, at hardly any cost.

    One image of the first batch is scored once more in a later batch, among other images, and again in the last batch
    of each certificate. If there is no later batch, it is scored once more among the images of the first one, in
    another contrast. On a device that multiplies with fewer bits the image is also scored alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: list[tuple[int, int | None]] = []  # of the tensors when it was checked
        self._probe: _Probe | None = None
        self._first: torch.Tensor | None = None  # the batch that the probe was scored in, until it was checked
        self._checked = False  # whether the probe was scored among other images
        self._fresh = False  # whether the probe was scored in the last batch so far

    def begin(self, votes: Scorer) -> None:
        """Prepare for a certificate. Check the classifier anew if it was changed: the caller may have trained it."""
        if self._versions != _list_versions(votes.model):
            self._probe, self._checked, self._first = None, False, None
        self._fresh = False

    def accept(self, votes: Scorer, image: torch.Tensor) -> None:
        """Take the classifier as checked, and remember its scores of an image [1, C, H, W]."""
        versions, image = _list_versions(votes.model), image.to(votes.device)
        with torch.inference_mode():
            scores = votes.scores(image)
        self._probe, self._versions = _Probe(image, scores, _scale(scores)), versions
        self._checked, self._first = True, None

    def score(self, votes: Scorer, images: torch.Tensor, *, last: bool = False) -> torch.Tensor:
        """Return the scores of a batch whose votes are counted, and check the classifier with it if that is due.

        Args:
            votes: The source of votes whose classifier is checked.
            images: The batch.
            last: Whether it is the last batch of a series.

        Raises:
            ConfigurationError: If the classifier is not a function of one image, or no longer the same one.
        """
        probe = self._probe
        if probe is None or probe.image.shape[1:] != images.shape[1:]:
            return self._remember(votes, images)
        self._fresh = False
        if self._checked and not last:
            return votes.scores(images)
        if votes.batch_size is not None and len(images) >= votes.batch_size:  # the caller allows no larger batch
            among = probe.image if self._checked else torch.cat([images[1:], probe.image])
            self._compare(votes, probe, votes.scores(among)[-1:], images, last=last)
            return votes.scores(images)
        scores = votes.scores(torch.cat([images, probe.image]))
        self._compare(votes, probe, scores[-1:], images, last=last)
        return scores[:-1]

    def _remember(self, votes: Scorer, images: torch.Tensor) -> torch.Tensor:
        """Score a batch and remember one of its images, unless another thread has just done so."""
        versions, scores = _list_versions(votes.model), votes.scores(images)
        with self._lock:
            if self._probe is None or self._probe.image.shape[1:] != images.shape[1:]:
                probe = _Probe(images[:1].clone(), scores[:1].clone(), _scale(scores))
                if votes.device.type != "cpu" or votes.rounding:
                    self._compare(votes, probe, votes.scores(probe.image), images)
                self._probe, self._versions, self._checked, self._first = probe, versions, False, images.clone()
        return scores

    def _compare(
        self, votes: Scorer, probe: _Probe, scores: torch.Tensor, images: torch.Tensor, *, last: bool = False
    ) -> None:
        """Compare the scores of the probe with those it had at first."""
        difference = probe.difference(scores)
        if self._checked:
            _check_drift(votes, difference)
        elif difference > _find_allowed(votes):
            check_function_of_one_image(votes, images)  # finds the cause
            raise _refusal(
                votes.model, f"change by {difference:.2g} of their spread when it is scored among other images",
                "its scores depend on the whole batch or on earlier calls",
            )  # fmt: skip
        else:
            votes.settle_alone(difference)
        self._fresh = last
        if self._first is None or len(images) + 1 >= len(self._first):  # small batches show less
            self._checked, self._first = True, None

    def confirm(self, votes: Scorer) -> None:
        """Raise an error if the classifier has changed since it was checked.

        Raises:
            ConfigurationError: If it has. What was counted since is then worth nothing.
        """
        probe = self._probe
        if probe is None:
            return
        if not self._fresh:
            with torch.inference_mode():
                if self._first is None:
                    self._compare(votes, probe, votes.scores(probe.image), probe.image)
                else:  # no later batch has held the probe: it is scored last, among images of another contrast
                    among = torch.cat([1 - self._first[1:], probe.image])
                    self._compare(votes, probe, votes.scores(among)[-1:], self._first)
        if self._versions != _list_versions(votes.model):
            raise _change(votes.model, "its parameters or buffers changed")


def _scale(scores: torch.Tensor) -> float:
    return float(spread(scores).mean())


@contextlib.contextmanager
def checked(votes: Scorer) -> Iterator[None]:
    """Check a classifier on batches that are scored for votes in this block, and at its end. It is in eval mode.

    Raises:
        ConfigurationError: If it is not a function of one image, or not the same one at the end.
    """
    check = votes.batch_check
    with eval_mode(votes.model):
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


def _check_drift(votes: Scorer, difference: float) -> None:
    # Labels that a smaller difference could change are near ties, whose images are scored alone.
    if difference > max(votes.near_tie, votes.rounding):
        raise _change(votes.model, f"its scores of the same image changed by {difference:.2g} of their spread")


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
