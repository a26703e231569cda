"""The search for a small change of an image that alters the label of the smoothed classifier.

The search lowers the votes for a class under noise, by projected gradient descent. The gradient is that of the network
where it has one, through the partition. Otherwise it is estimated from scores alone by Stein's identity: under Gaussian
noise Z, the gradient of E h(x + Z) is E h(x + Z) Z / sigma^2, whatever h is. The noise is drawn for the search and used
for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from pprs.audit.gradient import pull_back
from pprs.audit.margins import BaseClassifier, NoGradientError, SoftVotes, is_usable
from pprs.noise import QuantisedImage
from pprs.partition import GaussianFilter
from pprs.smoothing.classifier import SmoothedClassifier
from pprs.smoothing.voting import ATTACK, check_image, chunk_size, noisy_chunk

DRAWS = 32  # noisy copies from which a gradient is computed
SCORE_DRAWS = 64  # pairs of noisy copies from which a gradient is estimated
FIRST_SCORE_DRAWS = 768  # pairs for the first estimate, on which the others build
MEMORY = {"gradient": 0.75, "scores": 0.97}  # weight of earlier gradients, higher for noisier ones
RATE = 0.5  # size of the first step, as a share of the norm
BLURS = (1.0, 2.0, 4.0)  # pixels by which an estimate is also blurred, since a coarse one needs fewer queries
REFERENCE = 2.0  # standard deviations of the noise, the norm at which directions are compared
FITS = 30  # bisections when a change is scaled within valid pixel values


class Objective(SoftVotes):
    """How firmly a base classifier votes for a class under noise, for an image and its changes.

    Args:
        classifier: The smoothed classifier. Its seed keys the noise.
        x: The image [C, H, W] in [0, 1].
        label: The class, or None for the one with the most votes.
        index: The index of the image, which keys the noise.
        network: The network to differentiate, if it is not the one that the classifier runs.
        pause: Called between batches.
        draws: Noisy copies from which the scale of the margins is measured.
        batch: Noisy copies per call of the network. By default it depends on the image size.
        margin: How firmly the scores of each image speak for a class. By default, the distance to the best other score.
    """

    def __init__(
        self,
        classifier: SmoothedClassifier,
        x: torch.Tensor,
        label: int | None = None,
        *,
        index: int = 0,
        network: BaseClassifier | None = None,
        pause: Callable[[], None] = lambda: None,
        draws: int = DRAWS,
        batch: int | None = None,
        margin: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
    ) -> None:
        votes = classifier.votes
        super().__init__(votes, network, batch or min(16, chunk_size(x.numel())), pause, margin)
        self.votes, self.image, self.index = votes, check_image(x, votes.device), index
        self.partition = self.votes.resolve(tuple(self.image.shape))
        self.sigma, self._chunk = classifier.noise.sigma, 0
        self._prepared = self.votes.quantise(self.image)
        scores = self.scores(self.draw(draws))
        self.label = int(scores.argmax(1).bincount().argmax()) if label is None else label
        self.fix_scale(self._margin(scores, self.label))

    def draw(self, count: int) -> torch.Tensor:
        """Draw noise [count, C, H, W] that was not used before."""
        image, parts = self._prepared, []
        base = image.k.float() / image.levels if isinstance(image, QuantisedImage) else image
        while count > 0:
            noisy = noisy_chunk(image, self.votes.noise, self.votes.seed, self.index, ATTACK, self._chunk)
            parts.append((noisy - base)[:count])
            self._chunk, count = self._chunk + 1, count - len(noisy)
        return torch.cat(parts)

    def scores(self, noise: torch.Tensor, change: torch.Tensor | float = 0.0) -> torch.Tensor:
        """Return the scores of the changed image under this noise."""

        @torch.inference_mode()
        def classify(part: torch.Tensor) -> torch.Tensor:
            noisy = self.image + change + part
            return self.votes.scores(noisy if self.partition is None else self.partition.run(noisy)[0])

        return torch.cat(list(self._map(classify, noise, self.votes.model))).clone()

    def soft_votes(self, noise: torch.Tensor, change: torch.Tensor | float = 0.0) -> torch.Tensor:
        """Return a smooth form of each vote: near 1 for the class, near 0 for another."""
        return self.soften(self._margin(self.scores(noise, change), self.label))

    def share(self, noise: torch.Tensor, change: torch.Tensor) -> float:
        """Return the mean of the soft votes for the class, which an attack lowers."""
        return float(self.soft_votes(noise, change).mean())

    def leads(self, noise: torch.Tensor, change: torch.Tensor) -> bool:
        """Return whether the class has more votes than every other."""
        counts = self.scores(noise, change).argmax(1).bincount(minlength=self.votes.num_classes)
        others = counts.clone()
        others[self.label] = -1
        return bool(counts[self.label] > others.max())

    def gradients(self, noise: torch.Tensor, change: torch.Tensor | float = 0.0) -> dict[str, torch.Tensor]:
        """Return the gradient of the soft votes by the network's own gradients, keyed by how it was obtained.

        Raises:
            NoGradientError: If the network cannot be differentiated.
        """

        def differentiate(part: torch.Tensor) -> dict[str, torch.Tensor]:
            noisy = self.image + change + part
            margins, gradient = self.differentiate_network(
                noisy if self.partition is None else self.partition.run(noisy)[0]
            )
            soft = self.soften(margins)
            gradient *= (soft * (1 - soft)).view(-1, *[1] * (gradient.ndim - 1))
            return {how: batch.sum(0) for how, batch in pull_back(self.partition, noisy, gradient).items()}

        gradients: dict[str, torch.Tensor] = {}
        for found in self._map(differentiate, noise, self.network):
            for how, gradient in found.items():
                gradients[how] = gradients.get(how, torch.zeros_like(self.image)) + gradient
        return gradients

    def estimated_gradients(self, noise: torch.Tensor, change: torch.Tensor | float = 0.0) -> dict[str, torch.Tensor]:
        """Estimate the gradient of the soft votes from scores alone, at several resolutions."""
        difference = self.soft_votes(noise, change) - self.soft_votes(-noise, change)
        gradient = torch.einsum("b,bchw->chw", difference, noise) / (2 * len(noise) * self.sigma**2)
        estimates = {"estimated from scores": gradient}
        largest = float(gradient.abs().max())
        for blur in BLURS if largest > 0 else ():
            blurred = GaussianFilter(blur).apply((gradient / largest)[None])[0] * largest
            estimates[f"estimated from scores, blurred by {blur:g} pixels"] = blurred
        return estimates


class Attack:
    """Projected gradient descent on the soft votes.

    Args:
        objective: What to lower.
        starts: Changes towards other images, which a network without gradients may start from.
        draws: Noisy copies per gradient.
        score_draws: Pairs of noisy copies for the first estimate from scores.

    Attributes:
        kind: "gradient", or "scores" if the network has no usable gradient.
        how: How the gradient is obtained, an empty string if there is nothing to say.
        gradient_error: Why the network has no usable gradient, None if it has one.
        direction: The first direction, of norm 1.
        compared: The number of estimates that it was chosen from.

    Raises:
        NoGradientError: If the votes are constant around the image.
    """

    def __init__(
        self,
        objective: Objective,
        starts: Sequence[torch.Tensor] = (),
        *,
        draws: int = DRAWS,
        score_draws: int = FIRST_SCORE_DRAWS,
    ) -> None:
        self.objective, self._draws, self._score_draws = objective, draws, score_draws
        self.kind, self.gradient_error = "gradient", None
        try:
            directions = self._differentiate()
        except NoGradientError as error:
            self.kind, self.gradient_error = "scores", error.message
            found = objective.estimated_gradients(objective.draw(self._score_draws))
            directions = {how: normalize(-gradient) for how, gradient in found.items()}
        self.how = next(iter(directions))
        self.direction = directions[self.how]
        self.compared = len(directions)
        if len(directions) > 1 or (self.kind == "scores" and starts):
            self._choose_direction(directions, starts)

    def _differentiate(self) -> dict[str, torch.Tensor]:
        """Return unit vectors along which the votes fall, by the network's gradient."""
        objective = self.objective
        objective.check_network()
        found = objective.gradients(objective.draw(self._draws))
        if not all(is_usable(gradient) for gradient in found.values()):
            raise NoGradientError("its gradient is zero or not finite")
        return {how: normalize(-gradient) for how, gradient in found.items()}

    def _choose_direction(self, directions: dict[str, torch.Tensor], starts: Sequence[torch.Tensor]) -> None:
        """Choose the direction along which the votes fall furthest."""
        noise, norm = self.objective.draw(self._draws // 2), REFERENCE * self.objective.sigma

        def share(direction: torch.Tensor) -> float:
            return self.objective.share(noise, (norm * direction).float())

        self.how = min(directions, key=lambda how: share(directions[how]))
        candidates = [directions[self.how]]
        if self.kind == "scores":
            candidates += [normalize(start.to(self.objective.image.device)) for start in starts]
        self.direction = candidates[0] if len(candidates) == 1 else min(candidates, key=share)

    def search(
        self, norm: float, steps: int, start: torch.Tensor | None = None, *, bounded: bool = True
    ) -> torch.Tensor:
        """Search for the change of this norm that lowers the votes most.

        Args:
            norm: The L2 norm of the change.
            steps: The number of gradient steps.
            start: The change to start from. By default, one in the first direction.
            bounded: Keep the pixels of the changed image in [0, 1], which may leave the change smaller.

        Returns:
            The change [C, H, W], in double precision.
        """
        change = self._fit(self.direction if start is None else start.double(), norm, bounded)
        average = self.direction
        for step in range(steps):
            gradient = self._gradient(change.float())
            if gradient is None:
                continue
            memory = MEMORY[self.kind]
            average = memory * average + (1 - memory) * gradient
            size = RATE * norm / (1 + 4 * step / steps)
            change = self._fit(change + size * average / float(average.norm().clamp_min(1e-12)), norm, bounded)
        return change

    def _gradient(self, change: torch.Tensor) -> torch.Tensor | None:
        """Return the unit vector along which the votes fall at a changed image, or None where they are constant."""
        objective = self.objective
        if self.kind == "gradient":
            found = objective.gradients(objective.draw(self._draws), change)
        else:
            found = objective.estimated_gradients(objective.draw(SCORE_DRAWS), change)
        try:
            return normalize(-found[self.how]) if self.how in found else None
        except NoGradientError:
            return None

    def _fit(self, change: torch.Tensor, norm: float, bounded: bool) -> torch.Tensor:
        """Scale a change to this norm, or as close to it as valid pixels allow."""
        unit = change / float(change.norm().clamp_min(1e-300))
        if not bounded:
            return norm * unit
        image = self.objective.image.double()

        def clip(scale: float) -> torch.Tensor:
            return (image + scale * unit).clamp(0, 1) - image

        low, high = norm, norm
        while float(clip(high).norm()) < norm and high < 64 * norm:
            low, high = high, 2 * high
        for _ in range(FITS if high > low else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if float(clip(middle).norm()) < norm else (low, middle)
        return clip(low)


def normalize(vector: torch.Tensor) -> torch.Tensor:
    """Scale a vector to norm 1, in double precision, so that its multiple by r has norm r.

    Raises:
        NoGradientError: If it is zero or not finite.
    """
    if not is_usable(vector):
        raise NoGradientError(
            "the margin of the classifier is constant around this image, so there is no direction to show"
        )
    return vector.double() / float(vector.double().norm())
