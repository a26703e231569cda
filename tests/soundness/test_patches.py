"""No certificate against patches is false: all patches with a few values are tried on small images."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest
import torch

from pprs.errors import ConfigurationError, PprsError
from pprs.patches import Fill, MaskGrid, PatchClassifier, parse_fill
from pprs.patches.double_masking import Look, Predictions, certify, predict

FILLS = ["constant", "mean", "diffusion", "superpixels:n_segments=4"]
SIDE, PATCH, MASKS = 8, 2, 2
IMAGES, NETWORKS = 3, 3
Rule = Callable[[Look, int], int]


def make_network(seed: int, classes: int = 3) -> torch.nn.Module:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * (SIDE - 2) ** 2, classes)
    )
    return net.eval()


def make_images(count: int, seed: int) -> torch.Tensor:
    return (torch.rand(count, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)) < 0.5).float()


class Memory(torch.nn.Module):
    """The network that is easiest to attack: class 0 for the views that it knows, and for no other image.

    If it knows an image under all pairs of masks, the image is certified. A change of a single bit that a pair of masks
    does not hide gives class 1 or 2, so that most masks contradict the label wherever a patch lies.
    """

    def __init__(self, views: torch.Tensor) -> None:
        super().__init__()
        self.known = views.flatten(1).unique(dim=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        known = torch.stack([(flat == view).all(1) for view in self.known]).any(0)
        is_odd = (flat > 0.5).sum(1) % 2 == 1
        return torch.stack([known, ~known & is_odd, ~known & ~is_odd], dim=1).float()


def list_attacks(image: torch.Tensor, values: tuple[float, ...] = (0.0, 1.0)) -> torch.Tensor:
    """Return the image with every patch of these values at every position."""
    attacks = []
    contents = torch.tensor(list(itertools.product(values, repeat=PATCH**2))).reshape(-1, PATCH, PATCH)
    for top, left in itertools.product(range(SIDE - PATCH + 1), repeat=2):
        changed = image.repeat(len(contents), 1, 1, 1)
        changed[:, 0, top : top + PATCH, left : left + PATCH] = contents
        attacks.append(changed)
    return torch.cat(attacks).unique(dim=0)


def mask_images(images: torch.Tensor, hidden: torch.Tensor, fill: str) -> torch.Tensor:
    """Return all images under all pairs of masks, filled, [images * masks * masks, 1, SIDE, SIDE]."""
    pairs = (hidden[:, None] | hidden[None]).flatten(0, 1)
    return parse_fill(fill).apply(images.repeat_interleave(len(pairs), 0), pairs.repeat(len(images), 1, 1))


def tabulate(net: torch.nn.Module, images: torch.Tensor, hidden: torch.Tensor, fill: str) -> torch.Tensor:
    """Return the scores of all images under all pairs of masks [images, masks, masks, classes]."""
    with torch.inference_mode():
        return net(mask_images(images, hidden, fill)).reshape(len(images), len(hidden), len(hidden), -1)


def look_up(table: torch.Tensor) -> Look:
    def look(pairs: torch.Tensor) -> Predictions:
        scores = table[pairs[:, 0], pairs[:, 1]]
        return Predictions(pairs, scores, torch.ones(len(pairs), dtype=torch.bool))

    return look


def attack_all(
    cases: Iterable[tuple[torch.nn.Module, torch.Tensor]], hidden: torch.Tensor, fill: str, rule: Rule = predict
) -> tuple[int, int]:
    """Return how many images are certified, and on how many of them a patch changes the label all the same."""
    certified = broken = 0
    for net, image in cases:
        (own,) = tabulate(net, image[None], hidden, fill)
        verdict = certify(look_up(own), len(hidden), step=3)
        if not verdict.certified:
            continue
        certified += 1
        tables = tabulate(net, list_attacks(image), hidden, fill)
        broken += {rule(look_up(table), len(hidden)) for table in tables} != {verdict.label}
    return certified, broken


def list_random_networks() -> list[tuple[torch.nn.Module, torch.Tensor]]:
    return [(make_network(seed), image) for seed in range(NETWORKS) for image in make_images(IMAGES, seed)]


def list_memories(hidden: torch.Tensor, fill: str) -> list[tuple[torch.nn.Module, torch.Tensor]]:
    return [(Memory(mask_images(image[None], hidden, fill)), image) for image in make_images(1, 0)]


@pytest.fixture
def hidden() -> torch.Tensor:
    return MaskGrid(SIDE, SIDE, PATCH, MASKS).hidden


@pytest.mark.parametrize("fill", FILLS)
def test_no_patch_changes_a_certified_label(hidden: torch.Tensor, fill: str) -> None:
    certified, broken = attack_all(list_random_networks(), hidden, fill)
    assert certified >= 3, "the test has no power"
    assert broken == 0
    assert attack_all(list_memories(hidden, fill), hidden, fill) == (1, 0)


def follow_majority(look: Look, masks: int) -> int:
    """The rule without its second step."""
    return int(look(torch.arange(masks)[:, None].expand(-1, 2)).labels.bincount().argmax())


def trust_minority(look: Look, masks: int) -> int:
    """The rule with a second step that does not look through second masks."""
    labels = look(torch.arange(masks)[:, None].expand(-1, 2)).labels
    return next((label for label in labels.tolist() if label != labels.bincount().argmax()), int(labels[0]))


@pytest.mark.parametrize("rule", [follow_majority, trust_minority])
def test_the_search_finds_rules_that_are_wrong(hidden: torch.Tensor, rule: Rule) -> None:
    """The two are right on all images that no patch has changed."""
    assert attack_all(list_memories(hidden, "mean"), hidden, "mean", rule) == (1, 1)


@pytest.mark.parametrize("missing", range(MASKS**2))
def test_the_search_finds_a_missing_mask(hidden: torch.Tensor, missing: int) -> None:
    """Patches in that corner are seen through all other masks."""
    left = torch.cat([hidden[:missing], hidden[missing + 1 :]])
    assert attack_all(list_memories(left, "mean"), left, "mean") == (1, 1)
    if missing == 3:
        certified, broken = attack_all(list_random_networks(), left, "mean")
        assert certified >= 3
        assert broken > 0


@pytest.mark.parametrize("fill", FILLS[1:])
def test_the_search_finds_a_fill_that_sees_hidden_pixels(
    hidden: torch.Tensor, fill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leak(self: Fill, images: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.where(hidden[:, None], self._fill(images, hidden[:, None]), images)

    monkeypatch.setattr(Fill, "apply", leak)
    assert attack_all(list_memories(hidden, fill), hidden, fill) == (1, 1)


class Corners(torch.nn.Module):
    """Scores for 0 or 1 that follow single pixels, with a preference for 0."""

    def __init__(self, weights: dict[tuple[int, int], float]) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = sum(weight * x[:, 0, row, column] for (row, column), weight in self.weights.items())
        return torch.stack([torch.full_like(x[:, 0, 0, 0], 0.5), one], dim=1)


def test_a_label_that_hangs_on_one_patch_is_not_certified() -> None:
    """One pixel decides. The mask that hides it contradicts all others, and the classifier believes it."""
    image = torch.zeros(1, 8, 8)
    image[0, 1, 1] = 1.0
    certificate = PatchClassifier(Corners({(1, 1): 1.0}), 2, patch=2, masks=3, fill="constant").certify(image)
    assert certificate.prediction == 0
    assert not certificate.certified
    assert certificate.worst_label == 1


def test_two_copies_of_the_evidence_are_not_enough_and_three_are() -> None:
    """Each single mask hides one copy, and two masks hide two."""
    image = torch.zeros(1, 8, 8)
    corners = [(0, 0), (0, 7), (7, 0)]
    for row, column in corners:
        image[0, row, column] = 1.0
    for count, is_certified in ((2, False), (3, True)):
        net = Corners(dict.fromkeys(corners[:count], 1.0))
        certificate = PatchClassifier(net, 2, patch=1, masks=3, fill="constant").certify(image)
        assert certificate.prediction == 1
        assert certificate.certified == is_certified


def test_the_classifier_finds_the_patch_that_hides_the_truth() -> None:
    """A patch dominates every view but those of the masks on it. Double masking believes these."""
    net = Corners({(0, 0): -9.0, (0, 7): 1.0, (7, 0): 1.0, (7, 7): 1.0})
    clean = torch.zeros(1, 8, 8)
    for row, column in [(0, 7), (7, 0), (7, 7)]:
        clean[0, row, column] = 1.0
    g = PatchClassifier(net, 2, patch=1, masks=3, fill="constant")
    assert g.certify(clean).certified
    attacked = clean.clone()
    attacked[0, 0, 0] = 1.0
    assert int(net(attacked[None]).argmax()) == 0
    assert g.predict(attacked) == 1


def test_attacks_on_the_classifier_itself_fail(hidden: torch.Tensor) -> None:
    """Some of the attacks above, through batches and threads of the public class."""
    (image,) = make_images(1, 0)
    for net in (make_network(0), Memory(mask_images(image[None], hidden, "mean"))):
        g = PatchClassifier(net, 3, patch=PATCH, masks=MASKS, fill="mean", batch_size=3)
        certificate = g.certify(image)
        assert certificate.certified
        assert {g.predict(attack) for attack in list_attacks(image)[::9]} == {certificate.prediction}


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_certificates_do_not_depend_on_the_batch_size(batch_size: int) -> None:
    image = torch.rand(1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    expected = PatchClassifier(make_network(0), 3, PATCH, 3).certify(image)
    found = PatchClassifier(make_network(0), 3, PATCH, 3, batch_size=batch_size).certify(image)
    assert (found.prediction, found.certified) == (expected.prediction, expected.certified)


def test_near_ties_are_no_agreement() -> None:
    """Rounding could turn them around in another batch, so that the theorem would not hold."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[1.0, 1.0 - 1e-6, 0.0]]).repeat(len(x), 1)

    certificate = PatchClassifier(model, 3, patch=2, masks=3, fill="mean").certify(torch.zeros(1, 8, 8))
    assert certificate.prediction == 0
    assert not certificate.certified


def test_all_pairs_are_examined_and_no_more_than_needed() -> None:
    def constant(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[1.0, 0.0]]).repeat(len(x), 1)

    grid = PatchClassifier(constant, 2, patch=2, masks=6, fill="mean")
    assert grid.certify(torch.zeros(1, 28, 28)).passes == 666
    net = Corners({(1, 1): 1.0})
    image = torch.zeros(1, 28, 28)
    image[0, 1, 1] = 1.0
    assert PatchClassifier(net, 2, patch=2, masks=6, fill="mean").certify(image).passes < 100


def test_a_claim_is_stated_with_its_patch() -> None:
    def constant(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, 1.0]]).repeat(len(x), 1)

    certificate = PatchClassifier(constant, 2, patch=3, masks=2, fill="mean").certify(torch.zeros(3, 9, 12))
    assert str(certificate) == (
        "class 1: no change inside any one 3x3 patch of this 12x9 RGB image can alter this label"
    )


def test_bad_input_is_refused() -> None:
    net = make_network(0)
    image = torch.zeros(1, SIDE, SIDE)
    with pytest.raises(ConfigurationError, match='unknown fill "zeros"'):
        PatchClassifier(net, 3, patch=2, fill="zeros")
    with pytest.raises(ConfigurationError, match="`patch` must be at least 1"):
        PatchClassifier(net, 3, patch=0)
    with pytest.raises(ConfigurationError, match="Give a side below 8"):
        PatchClassifier(net, 3, patch=8).certify(image)
    with pytest.raises(ConfigurationError, match="only 7 positions"):
        PatchClassifier(net, 3, patch=2, masks=8).predict(image)
    with pytest.raises(PprsError, match="must lie in"):
        PatchClassifier(net, 3, patch=2, masks=3).predict(image + 2)
    with pytest.raises(PprsError, match="num_classes=5 requires"):
        PatchClassifier(net, 5, patch=2, masks=3).predict(image)
    with pytest.raises(PprsError, match="NaN scores"):
        PatchClassifier(lambda x: torch.full((len(x), 2), torch.nan), 2, patch=2, masks=3).predict(image)


def test_a_network_that_mixes_its_batch_is_refused() -> None:
    def mixing(x: torch.Tensor) -> torch.Tensor:
        total = x.mean((1, 2, 3))
        return torch.stack([total - total.mean(), total.mean() - total], dim=1)

    g = PatchClassifier(mixing, 2, patch=2, masks=3)
    with pytest.raises(ConfigurationError, match="depend on the whole batch"):
        g.check_model(torch.rand(1, 8, 8))
