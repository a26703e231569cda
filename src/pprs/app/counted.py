"""Certify one image by counted votes behind thresholds, and show what one of the votes is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pprs._support.threads import get_threads
from pprs.app.alone import show_alone
from pprs.app.cards import CardStyle, Number, TabAnswer, TabCard, Tile, Words, render_answer, style_methods
from pprs.app.requests import Request
from pprs.app.server.cost import check_cost
from pprs.app.server.jobs import BackgroundJob
from pprs.app.votes import make_bars
from pprs.dither import Dither, DitherCertificate, DitherClassifier
from pprs.dither.estimators import Estimator, PartitionedEstimator
from pprs.dither.thresholds import ShownLevels
from pprs.kernels.thresholds import GREY
from pprs.partition import Auto, Partition
from pprs.progress import stage
from pprs.report import figures
from pprs.smoothing.certificate import round_down
from pprs.smoothing.memory import check_memory

Array = npt.NDArray[Any]
OFFSET = 0  # of the vote that is shown
SHOWN_TIP = "White: the value exceeds its threshold. Black: it does not. Grey: nothing is shown of it at this offset."


@dataclass(frozen=True)
class ThresholdSettings:
    """The thresholds, and how an image is estimated from what they show."""

    dither: Dither
    partition: Estimator | Partition | Auto | None

    @property
    def partition_text(self) -> str:
        """The partition as the command line accepts it."""
        return "none" if self.partition is None else str(self.partition)


CountedRequest: TypeAlias = Request[ThresholdSettings]


@dataclass(frozen=True)
class CountedResult:
    """A certificate, and what one of its votes is about."""

    certificate: DitherCertificate
    alone: int  # the label of the network alone
    estimator: Estimator  # with every option resolved
    shown: Array  # of the image at one offset [C, H, W]
    estimated: Array  # from that [C, H, W]
    vote: int  # the label of that


def certify_counted(request: CountedRequest, job: BackgroundJob[CountedResult]) -> CountedResult:
    """Certify the image, as `DitherClassifier.certify` does after `check_model`."""
    image, loaded, settings = request.chosen.values, request.loaded, request.settings
    check_memory(image, threads=get_threads())
    g = DitherClassifier(loaded.ready, loaded.num_classes, settings.dither, settings.partition)
    estimator = g.votes.find_estimator(request.shape)
    if isinstance(estimator, PartitionedEstimator):
        check_cost(estimator.partition, request.shape, job.turn)
    with stage(job, "check the network", 1, ""):
        g.check_model(image)
    with stage(job, "count votes", settings.dither.levels, "passes"):
        certificate = g.certify(image, on_passes=job.advance)
    values, offset = settings.dither.find_levels(image), torch.tensor([OFFSET])
    estimated = g.votes.estimate(values, offset)
    with torch.inference_mode():
        alone, vote = (int(g.votes.scores(one).argmax()) for one in (image[None], estimated))
    shown = draw_shown(g.votes.show(values, offset))
    return CountedResult(certificate, alone, estimator, shown, estimated[0].numpy(), vote)


def draw_shown(shown: ShownLevels) -> Array:
    """Draw what is shown of an image [C, H, W]: values above their threshold white, and those of which nothing is grey.

    >>> bounds = torch.tensor([[[[0, 101, 0]]]]), torch.tensor([[[[100, 255, 255]]]])
    >>> draw_shown(ShownLevels(*bounds, 510)).tolist()
    [[[0.0, 1.0, 0.5]]]
    """
    low, high = shown.lowest[0].numpy(), shown.highest[0].numpy()
    return np.where(low > 0, 1.0, np.where(high < GREY, 0.0, 0.5))


def render_counted(request: CountedRequest, result: CountedResult) -> str:
    """Render the label, what cannot alter it, the votes, and what one of them is about."""
    dither, text = request.settings.dither, request.settings.partition_text
    note = (
        f"{request.describe(f'estimate {result.estimator}')}. The claim is about the classifier with counted "
        f"votes (DitherClassifier.predict), not about the network alone, and about changed images of 8 bits. Nothing "
        f"is sampled, so there is no failure probability. A certificate takes {dither.levels:,} passes of the network."
    )
    snippets = [
        ("On the command line", f"pprs certify --model M --data D --noise {dither} --partition {text}"),
        ("In Python", f'pprs.dither.DitherClassifier(model, num_classes, "{dither}", "{text}").certify(x)'),
    ]
    cards = [
        show_alone(request, result.alone, "a small change"),
        _show_claim(request, result),
        _show_vote(request, result),
    ]
    data: dict[str, object] = {"state": "done", "levels": result.certificate.grey_levels}
    return render_answer(TabAnswer("counted", cards, [note], data=data, snippets=snippets))


def _show_claim(request: CountedRequest, result: CountedResult) -> TabCard:
    certificate, get_name, dither = result.certificate, request.loaded.get_class_name, request.settings.dither
    wrong, changes = request.warn_if_wrong(certificate.prediction), Number("–", "", "Nothing is proved.")
    if levels := certificate.grey_levels:
        tip = (
            "No change whose sum over all values of the image is at most this, in levels from 0 to 255, can alter the "
            f"label. With {dither.levels:,} thresholds it is never more than {dither.levels // 2:,}."
        )
        changes = Number(f"{levels:,}", "grey level" if levels == 1 else "grey levels", tip)
    return TabCard(
        "Counted votes",
        f"T = {dither.levels:,}",
        _choose_style(result.estimator),
        "counted-claim",
        headline=(get_name(certificate.prediction), changes),
        statement=(describe_counted(certificate, get_name(certificate.prediction), request.scope),),
        proved=certificate.grey_levels > 0,
        bars=make_bars(certificate.votes, certificate.prediction, get_name, "passes"),
        voters="passes",
        notes=[*([(wrong,)] if wrong else []), *_list_numbers(certificate)],
    )


def _list_numbers(certificate: DitherCertificate) -> list[Words]:
    norm = "The same as a norm: the sum of all changes, with values in [0, 1]."
    pixels = (
        "So many pixels may change in any way, in all channels. Each may change what is shown at "
        f"{certificate.per_pixel:,} offsets."
    )
    passes = "Each offset of the thresholds is one vote, and all of them are counted."
    numbers = (
        Number(round_down(certificate.radius), "L1", norm), " · ",
        Number(f"{certificate.pixels:,}", "pixel" if certificate.pixels == 1 else "pixels", pixels), " · ",
        Number(f"{sum(certificate.votes):,}", "passes", passes),
    )  # fmt: skip
    if not certificate.rounding:
        return [numbers]
    return [numbers, (f"This image lies between levels of 8 bits: {certificate.rounding:,} levels are lost to that.",)]


def _show_vote(request: CountedRequest, result: CountedResult) -> TabCard:
    total = request.settings.dither.levels
    return TabCard(
        "One of the votes",
        f"offset {OFFSET}",
        _choose_style(result.estimator),
        headline=(request.loaded.get_class_name(result.vote),),
        statement=(
            f"One of {total:,} votes: each value is only compared with its threshold, and the network sees what is "
            "recovered from that.",
        ),
        tiles=[
            Tile("shown", figures.to_rgb(result.shown), SHOWN_TIP),
            Tile("recovered", figures.to_rgb(result.estimated), f"The estimate {result.estimator}."),
        ],
    )


def _choose_style(estimator: Estimator) -> CardStyle:
    return style_methods([estimator.partition if isinstance(estimator, PartitionedEstimator) else None])[0]


def describe_counted(certificate: DitherCertificate, name: str, scope: str) -> str:
    """Say what is proved, or what may help if nothing is."""
    text = f"{certificate.describe(name, scope)}."
    if certificate.grey_levels:
        return text
    if certificate.offsets:
        return f"{text} The image lies between levels of 8 bits, and rounding it used up the rest."
    return f"{text} Fewer thresholds, another partition or an adapted network (`pprs adapt --noise dither`) may help."
