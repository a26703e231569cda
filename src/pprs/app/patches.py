"""Certify one image against patches, and show the worst pair of masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from pprs.app.alone import show_alone
from pprs.app.cards import Number, TabAnswer, TabCard, Tile, render_answer, style_fill
from pprs.app.requests import Request
from pprs.app.server.jobs import BackgroundJob
from pprs.patches import PatchCertificate, PatchClassifier
from pprs.patches.pictures import paint_masks
from pprs.progress import stage
from pprs.report import figures


@dataclass(frozen=True)
class MaskingSettings:
    """The size of the patch, and how images are masked."""

    patch: int
    masks: int
    fill: str


PatchRequest: TypeAlias = Request[MaskingSettings]


@dataclass(frozen=True)
class PatchResult:
    """A certificate, and what it looks like under the worst pair of masks."""

    certificate: PatchCertificate
    unmasked: int  # the label of the network alone
    hidden: torch.Tensor  # what the worst pair of masks hides [H, W]
    filled: torch.Tensor  # what the network sees then [C, H, W]


def certify_patch(request: PatchRequest, job: BackgroundJob[PatchResult]) -> PatchResult:
    """Certify the image, as `PatchClassifier.certify` does after `check_model`."""
    image, loaded, settings = request.chosen.values, request.loaded, request.settings
    g = PatchClassifier(loaded.ready.module, loaded.num_classes, settings.patch, settings.masks, settings.fill)
    count = len(g.grid_for(image))
    with stage(job, "examine pairs of masks", count * (count + 1) // 2, "passes at most"):
        g.check_model(image)
        certificate = g.certify(image, on_passes=job.advance)
    pair = torch.tensor([certificate.worst])
    return PatchResult(certificate, g.predict_unmasked(image), g.grid_for(image).hide(pair)[0], g.mask(image, pair)[0])


def render_patch(request: PatchRequest, result: PatchResult) -> str:
    """Render the label, whether it is certified, and the worst pair of masks."""
    settings = request.settings
    size = f"patch {settings.patch}x{settings.patch}; {settings.masks}x{settings.masks} masks; fill {settings.fill}"
    note = (
        f"{request.describe(size)}. The claim is about the double-masked classifier, which looks at the image through "
        "pairs of masks and predicts what they agree on. It is exact: there is no noise. Two patches at once, or a "
        "larger one, are not covered."
    )
    cards = [
        show_alone(request, result.unmasked, "a patch"),
        _show_claim(request, result.certificate),
        _show_worst(request, result),
    ]
    data: dict[str, object] = {"state": "done", "certified": str(result.certificate.certified).lower()}
    return render_answer(TabAnswer("patch", cards, [note], data=data))


def _show_claim(request: PatchRequest, certificate: PatchCertificate) -> TabCard:
    name, wrong = request.loaded.get_class_name(certificate.prediction), request.warn_if_wrong(certificate.prediction)
    passes = Number(
        f"{certificate.passes:,}", "passes",
        "Masked images that the network classified. The first contradiction ends the work.",
    )  # fmt: skip
    return TabCard(
        "Double masking",
        request.settings.fill,
        style_fill(request.settings.fill),
        "patch-claim",
        headline=(name, "certified" if certificate.certified else "not certified"),
        statement=(describe_patch(certificate, name, request.scope),),
        proved=certificate.certified,
        notes=[*([(wrong,)] if wrong else []), (passes,)],
    )


def _show_worst(request: PatchRequest, result: PatchResult) -> TabCard:
    certificate, worst = result.certificate, request.loaded.get_class_name(result.certificate.worst_label)
    if certificate.certified:
        text = "The network still gives the same label under this pair, which leaves it the smallest lead of all."
    elif certificate.worst_label != certificate.prediction:
        text = f"Under this pair, the network sees another label: {worst}."
    else:
        text = "Under this pair, the label leads by so little that rounding could decide."
    return TabCard(
        "The worst pair of masks",
        "",
        style_fill(request.settings.fill),
        headline=(worst,),
        statement=(text,),
        tiles=[
            Tile("hidden by the worst pair", paint_masks(request.chosen.values, result.hidden) / 255),
            Tile("what the network sees", figures.to_rgb(result.filled.numpy()), "Hidden pixels are filled."),
        ],
    )


def describe_patch(certificate: PatchCertificate, name: str, scope: str) -> str:
    """Say what is proved, or what would help if nothing is."""
    side = f"{certificate.patch}x{certificate.patch}"
    if certificate.certified:
        return (
            f"{name}: no change inside any one {side} patch of {scope}{',' if ',' in scope else ''} can alter this "
            "label, wherever the patch lies and whatever its pixels become. There is no failure probability."
        )
    return (
        f"{name}, not certified: a {side} patch may alter this label. A smaller patch, more masks, another fill or a "
        "network adapted to masks (`pprs adapt --patch`) would help."
    )
