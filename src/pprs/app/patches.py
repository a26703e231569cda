"""Certify one image against patches, and show the worst pair of masks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pprs.app.cards import COLOURS
from pprs.app.catalog import LoadedModel
from pprs.app.certification import Tile
from pprs.app.images import ChosenImage
from pprs.app.render import render
from pprs.app.server.jobs import Job
from pprs.patches import PatchCertificate, PatchClassifier
from pprs.patches.pictures import paint_masks
from pprs.progress import stage
from pprs.report import figures


@dataclass(frozen=True)
class PatchRequest:
    """A visitor's request for a certificate against patches: everything that it depends on."""

    loaded: LoadedModel
    chosen: ChosenImage
    patch: int
    masks: int
    fill: str

    @property
    def scope(self) -> str:
        """The image whose changes a certificate covers."""
        return self.loaded.describe_image(self.chosen.image, self.chosen.file_shape)

    @property
    def description(self) -> str:
        """All settings that the result depends on, in one line."""
        return (
            f"{self.chosen.title}; the guarantee holds for {self.scope}; patch {self.patch}x{self.patch}; "
            f"{self.masks}x{self.masks} masks; fill {self.fill}; engine {self.loaded.engine}"
        )


@dataclass(frozen=True)
class PatchResult:
    """A certificate, and what it looks like under the worst pair of masks."""

    certificate: PatchCertificate
    unmasked: int  # the label of the network alone
    hidden: torch.Tensor  # what the worst pair of masks hides [H, W]
    filled: torch.Tensor  # what the network sees then [C, H, W]


def certify_patch(request: PatchRequest, job: Job[PatchResult]) -> PatchResult:
    """Certify the image, as `PatchClassifier.certify` does after `check_model`."""
    image, loaded = request.chosen.image, request.loaded
    g = PatchClassifier(loaded.ready.module, loaded.num_classes, request.patch, request.masks, request.fill)
    count = len(g.grid_for(image))
    with stage(job, "examine pairs of masks", count * (count + 1) // 2, "passes at most"):
        g.check_model(image)
        certificate = g.certify(image, on_passes=job.advance)
    pair = torch.tensor([certificate.worst])
    return PatchResult(certificate, g.predict_unmasked(image), g.grid_for(image).hide(pair)[0], g.mask(image, pair)[0])


def render_patch(request: PatchRequest, result: PatchResult) -> str:
    """Render the label, whether it is certified, and the worst pair of masks."""
    certificate, image = result.certificate, request.chosen.image
    name, label = request.loaded.get_class_name, request.chosen.label
    wrong = label is not None and label != certificate.prediction
    return render(
        "patch.html",
        request=request,
        certificate=certificate,
        colours=COLOURS,
        original=Tile("image", figures.to_rgb(image.numpy())),
        pair=[
            Tile("hidden by the worst pair", paint_masks(image, result.hidden) / 255),
            Tile("what the network sees", figures.to_rgb(result.filled.numpy()), "Hidden pixels are filled."),
        ],
        label=name(certificate.prediction),
        unmasked=name(result.unmasked),
        worst=name(certificate.worst_label),
        statement=describe_patch(certificate, name(certificate.prediction), request.scope),
        true_label=name(label) if wrong and label is not None else "",
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
