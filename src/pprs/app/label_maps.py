"""Certify the label map of one image, by plain smoothing and with a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pprs._support.threads import get_threads
from pprs.app.cards import Number, TabAnswer, TabCard, Tile, Words, render_answer, style_methods
from pprs.app.certification import SIGMA_TIP, check_costs, draw_noisy, show_to_network
from pprs.app.requests import NAMES, Request, SmoothingMethod
from pprs.app.server.jobs import BackgroundJob
from pprs.progress import stage
from pprs.report import figures
from pprs.segmentation import SegmentationCertificate, SegmentationSampling, SmoothedSegmenter
from pprs.segmentation.metrics import Confusion
from pprs.segmentation.pictures import MAX_LEGEND, palette, render_maps
from pprs.smoothing.certificate import confidence, round_down, state_arithmetic
from pprs.smoothing.memory import check_memory

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class MapSettings:
    """The settings of certified label maps."""

    sampling: SegmentationSampling
    mask: torch.Tensor | None  # the true labels, if known; only for display


MapRequest: TypeAlias = Request[MapSettings]


@dataclass(frozen=True)
class LabelMap:
    """The certified map of one method, and what the network sees of the first noisy copy."""

    certificate: SegmentationCertificate
    seen: Array


def certify_maps(request: MapRequest, job: BackgroundJob[list[LabelMap]]) -> list[LabelMap]:
    """Certify the map of each method. Each equals that of `certify_segmentation`, after `check_model`."""
    check_memory(request.chosen.values, threads=get_threads())
    check_costs(request, job.turn)
    return [_certify(request, method, job) for method in request.methods]


def _certify(request: MapRequest, method: SmoothingMethod, job: BackgroundJob[list[LabelMap]]) -> LabelMap:
    loaded, chosen, sampling = request.loaded, request.chosen, request.settings.sampling
    segmenter = SmoothedSegmenter(
        loaded.ready.module, loaded.num_classes, method.noise, method.partition, seed=request.seed
    )
    name = "plain smoothing" if method.partition is None else method.title
    with stage(job, f"certify with {name}", sampling.n0 + sampling.n, "samples"):
        segmenter.check_model(chosen.values, index=chosen.index)
        certificate = segmenter.certify(chosen.values, sampling, index=chosen.index, on_samples=job.advance)
    return LabelMap(certificate, show_to_network(method.resolve(request.shape), draw_noisy(request)))


def render_label_maps(request: MapRequest, maps: Sequence[LabelMap]) -> str:
    """Render the image, and the map, the shares and the claim of each method."""
    return render_answer(
        TabAnswer(
            "maps",
            [_make_image_card(request, maps), *(_make_card(request, one, i) for i, one in enumerate(maps))],
            [_describe(request, len(maps))],
            data={"state": "done", "seed": request.seed},
        )
    )


def _describe(request: MapRequest, methods: int) -> str:
    sampling = request.settings.sampling
    settings = f"tau {sampling.tau:g}; {sampling.n0} + {sampling.n:,} samples; alpha {sampling.alpha:g}"
    both = (
        f" Both maps hold together with probability at least {confidence(2 * sampling.alpha)}." if methods > 1 else ""
    )
    return (
        f"{request.describe(settings)}. The claims about all certified pixels of a map hold together: the probability "
        f"that any of them is false is at most {sampling.alpha:g}.{both} Radii and shares are rounded down."
    )


def _make_image_card(request: MapRequest, maps: Sequence[LabelMap]) -> TabCard:
    mask = None if request.settings.mask is None else request.settings.mask.numpy()
    views = render_maps(maps[0].certificate, request.chosen.values.numpy(), mask)
    tiles = [Tile(name, views[name]) for name in ("image", "mask") if name in views]
    return TabCard(request.chosen.title, tiles=tiles, legend=_make_legend(request, maps))


def _make_legend(request: MapRequest, maps: Sequence[LabelMap]) -> list[tuple[str, str]]:
    """Return the classes that occur with their colours, or nothing if there are too many to tell apart."""
    shown = [label_map.certificate.selected for label_map in maps]
    if request.settings.mask is not None:
        shown.append(request.settings.mask.numpy())
    labels = [int(label) for label in np.unique(np.concatenate([s.ravel() for s in shown])) if label >= 0]
    if len(labels) > MAX_LEGEND:
        return []
    colours = np.rint(255 * palette(request.loaded.num_classes)).astype(int)
    return [(request.loaded.get_class_name(label), "rgb({},{},{})".format(*colours[label])) for label in labels]


def _make_card(request: MapRequest, label_map: LabelMap, i: int) -> TabCard:
    certificate, method = label_map.certificate, request.methods[i]
    seen = "what the network sees" if method.partition is not None else "a noisy copy"
    return TabCard(
        NAMES[i],
        method.title,
        style_methods(one.partition for one in request.methods)[i],
        f"map{i}",
        headline=_make_headline(request, certificate),
        statement=(describe_map(certificate, request.scope),),
        proved=bool(certificate.certified.any()),
        tiles=[Tile(seen, figures.to_rgb(label_map.seen), SIGMA_TIP), *_make_tiles(certificate)],
        notes=[_count_pixels(certificate, request.settings.mask)],
    )


def _make_tiles(certificate: SegmentationCertificate) -> list[Tile]:
    captions = (
        ("most frequent label", "The label that each pixel has most often. Nothing is proved about it."),
        ("certified map", "Striped pixels abstain: nothing is claimed about them."),
        ("share of the votes", "How many of the noisy copies agree with that label. White: all of them."),
    )
    views = render_maps(certificate, None, None).values()
    return [Tile(caption, view, tip) for (caption, tip), view in zip(captions, views, strict=True)]


def _make_headline(request: MapRequest, certificate: SegmentationCertificate) -> Words:
    pixels, certified = certificate.labels.size, int(certificate.certified.sum())
    tip = f"{certified:,} of {pixels:,} pixels have a certified label. At the others, nothing is claimed."
    share = Number(round_down(100 * certified / pixels, 1), "% certified", tip, {"certified": certified})
    if not certified:
        return share, Number("–", "", "No radius: nothing is proved.")
    radius_tip = (
        "Certified radius: no change with an L2 norm up to this radius can alter the label of any certified pixel. The "
        "norm is the root of the sum of squares over all pixels and channels, with values in [0, 1], of "
        f"{request.scope}."
    )
    exact: dict[str, object] = {"radius": repr(certificate.radius), "samples": certificate.n}
    return share, Number(round_down(certificate.radius), "L2", radius_tip, exact)


def _count_pixels(certificate: SegmentationCertificate, mask: torch.Tensor | None) -> Words:
    """Return the share of the pixels that abstain, and those that are right and wrong if that is known."""
    abstained = f"{100 * certificate.abstained_share:.1f}"
    words: list[str | Number] = [
        Number(abstained, "% abstained", "Share of the pixels about which nothing is claimed.")
    ]
    if mask is None:
        return words
    confusion = Confusion.of(certificate.labels, mask.numpy(), certificate.num_classes)
    right = round_down(100 * confusion.accuracy, 1)
    tip = "Share of the pixels whose certified label is that of the mask."
    words += [" · ", Number(right, "% certified and right", tip)]
    wrong = int(confusion.table[:, :-1].sum() - np.trace(confusion.table))
    if wrong:
        differ = "certified pixel differs from the mask" if wrong == 1 else "certified pixels differ from the mask"
        tip = "A certificate proves that a label is stable, not that it is correct."
        words += [" · ", Number(f"{wrong:,}", differ, tip)]
    return words


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
