"""Certify the label map of one image, by plain smoothing and with a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pprs._support.threads import get_threads
from pprs.app.cards import COLOURS
from pprs.app.catalog import LoadedModel
from pprs.app.certification import NAMES, SIGMA_TIP, Tile
from pprs.app.images import ChosenImage
from pprs.app.render import render
from pprs.app.server.cost import check_cost
from pprs.app.server.jobs import Job
from pprs.noise import Noise
from pprs.partition import Partition, Recommendation
from pprs.progress import stage
from pprs.report import figures
from pprs.segmentation import SegmentationCertificate, SegmentationSampling, SmoothedSegmenter
from pprs.segmentation.metrics import Confusion
from pprs.segmentation.pictures import MAX_LEGEND, palette, render_maps
from pprs.smoothing.arithmetic import prepare_image
from pprs.smoothing.certificate import confidence, round_down, state_arithmetic
from pprs.smoothing.memory import check_memory
from pprs.smoothing.voting import noisy_chunk

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class MapRequest:
    """A visitor's request for certified label maps: everything that they depend on."""

    loaded: LoadedModel
    chosen: ChosenImage
    mask: torch.Tensor | None  # the true labels, if known; only for display
    noise: Noise
    partition: Partition | None
    sampling: SegmentationSampling
    seed: int
    recommendation: Recommendation | None = None  # if the partition was left to the page

    @property
    def partitions(self) -> tuple[Partition | None, ...]:
        """The partition of each method. Plain smoothing comes first."""
        return (None,) if self.partition is None else (None, self.partition)

    @property
    def scope(self) -> str:
        """The image whose changes a map is about."""
        return self.loaded.describe_image(self.chosen.image, self.chosen.file_shape)

    @property
    def description(self) -> str:
        """All settings that the maps depend on, in one line."""
        sampling = self.sampling
        why = "" if self.partition or not self.recommendation else f"; {self.recommendation}"
        return (
            f"{self.chosen.title}; the guarantee holds for {self.scope}; {self.noise}; tau {sampling.tau:g}; seed "
            f"{self.seed}, image index {self.chosen.index}; {sampling.n0} + {sampling.n:,} samples; alpha "
            f"{sampling.alpha:g}; engine {self.loaded.engine}{why}"
        )


@dataclass(frozen=True)
class LabelMap:
    """The certified map of one method, and what the network sees of the first noisy copy."""

    certificate: SegmentationCertificate
    seen: Array


def certify_maps(request: MapRequest, job: Job[list[LabelMap]]) -> list[LabelMap]:
    """Certify the map of each method. Each equals that of `certify_segmentation`, after `check_model`."""
    image = request.chosen.image
    check_memory(image, threads=get_threads())
    for partition in request.partitions:
        check_cost(_resolve(request, partition), tuple(image.shape), job.turn)
    return [_certify(request, partition, job) for partition in request.partitions]


def _resolve(request: MapRequest, partition: Partition | None) -> Partition | None:
    return None if partition is None else partition.resolve(request.noise.sigma, tuple(request.chosen.image.shape))


def _certify(request: MapRequest, partition: Partition | None, job: Job[list[LabelMap]]) -> LabelMap:
    loaded, image, index, sampling = request.loaded, request.chosen.image, request.chosen.index, request.sampling
    segmenter = SmoothedSegmenter(
        loaded.ready.module, loaded.num_classes, request.noise, partition, seed=request.seed
    )  # fmt: skip
    name = "plain smoothing" if partition is None else partition.short
    with stage(job, f"certify with {name}", sampling.n0 + sampling.n, "samples"):
        segmenter.check_model(image, index=index)
        certificate = segmenter.certify(image, sampling, index=index, on_samples=job.advance)
    noisy = noisy_chunk(prepare_image(image, request.noise), request.noise, request.seed, index)[:1].numpy()
    resolved = _resolve(request, partition)
    return LabelMap(certificate, (noisy if resolved is None else resolved.apply(noisy))[0])


class _LegendEntry(NamedTuple):
    """A class and its colour."""

    name: str
    colour: str


@dataclass(frozen=True)
class _MapCard:
    """The map of one method, ready for display."""

    name: str
    partition: str
    colour: str
    share: str  # of the certified pixels, in percent
    abstained: str  # in percent
    certified: int  # pixels
    pixels: int
    radius: str
    statement: str
    tiles: Sequence[Tile]
    right: str | None  # share of the pixels that are certified and right, in percent; None if that is unknown
    wrong: int  # pixels that are certified and wrong
    exact: dict[str, object]


def render_label_maps(request: MapRequest, maps: Sequence[LabelMap]) -> str:
    """Render the image, and the map, the shares and the claim of each method."""
    views = render_maps(
        maps[0].certificate, request.chosen.image.numpy(), None if request.mask is None else request.mask.numpy()
    )
    return render(
        "maps.html",
        request=request,
        tiles=[Tile(name, views[name]) for name in ("image", "mask") if name in views],
        legend=_make_legend(request, maps),
        cards=[_make_card(request, label_map, i) for i, label_map in enumerate(maps)],
        both=confidence(min(1.0, len(maps) * request.sampling.alpha)),
        radius_tip="Certified radius: no change with an L2 norm up to this radius can alter the label of any certified "
        "pixel. The norm is the root of the sum of squares over all pixels and channels, with values in [0, 1], of "
        f"{request.scope}.",
    )


def _make_legend(request: MapRequest, maps: Sequence[LabelMap]) -> list[_LegendEntry]:
    """Return the classes that occur, or nothing if there are too many to tell apart."""
    shown = [label_map.certificate.selected for label_map in maps]
    if request.mask is not None:
        shown.append(request.mask.numpy())
    labels = [int(label) for label in np.unique(np.concatenate([s.ravel() for s in shown])) if label >= 0]
    if len(labels) > MAX_LEGEND:
        return []
    colours = np.rint(255 * palette(request.loaded.num_classes)).astype(int)
    return [
        _LegendEntry(request.loaded.get_class_name(label), "rgb({},{},{})".format(*colours[label])) for label in labels
    ]


def _make_card(request: MapRequest, label_map: LabelMap, method: int) -> _MapCard:
    certificate, partition = label_map.certificate, request.partitions[method]
    views = render_maps(certificate, None, None)
    seen = "what the network sees" if partition is not None else "a noisy copy"
    captions = (
        ("most frequent label", "The label that each pixel has most often. Nothing is proved about it."),
        ("certified map", "Striped pixels abstain: nothing is claimed about them."),
        ("share of the votes", "How many of the noisy copies agree with that label. White: all of them."),
    )
    tiles = [
        Tile(caption, view, tip) for (caption, tip), view in zip(captions, views.values(), strict=True)
    ]  # fmt: skip
    right, wrong = None, 0
    if request.mask is not None:
        confusion = Confusion.of(certificate.labels, request.mask.numpy(), certificate.num_classes)
        right = round_down(100 * confusion.accuracy, 1)
        wrong = int(confusion.table[:, :-1].sum() - np.trace(confusion.table))
    certified = int(certificate.certified.sum())
    return _MapCard(
        name=NAMES[method],
        partition="plain smoothing" if partition is None else partition.short,
        colour=COLOURS[method],
        share=round_down(100 * certified / certificate.labels.size, 1),
        abstained=f"{100 * certificate.abstained_share:.1f}",
        certified=certified,
        pixels=certificate.labels.size,
        radius=round_down(certificate.radius),
        statement=describe_map(certificate, request.scope),
        tiles=[Tile(seen, figures.to_rgb(label_map.seen), SIGMA_TIP), *tiles],
        right=right,
        wrong=wrong,
        exact={"radius": repr(certificate.radius), "samples": certificate.n},
    )


def describe_map(certificate: SegmentationCertificate, scope: str) -> str:
    """Say what a map proves about all its pixels together, or what would help if it proves nothing."""
    pixels, certified = certificate.labels.size, int(certificate.certified.sum())
    if not certified:
        return (
            f"Abstained at all {pixels:,} pixels: no label is proved to have a share above tau {certificate.tau:g} of "
            "the noisy copies. More samples, a smaller tau, less noise (sigma) or another partition would help."
        )
    return (
        f"{certified:,} of {pixels:,} pixels: no change of L2 norm up to {round_down(certificate.radius)} to "
        f"{scope}{',' if ',' in scope else ''} can alter any of their labels. This holds for all of them together, "
        f"with {confidence(certificate.alpha)} confidence"
        f"{state_arithmetic(certificate.arithmetic, certificate.levels)}."
    )
