"""The Patch tab: whether any one square patch can alter the label of an image."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from pprs.app.networks import Network
from pprs.app.patches import MaskingSettings, certify_patch, render_patch
from pprs.app.requests import ChosenInput, Request
from pprs.app.tabs import jobs
from pprs.app.tabs.base import Tab, Values
from pprs.app.tabs.fields import Field, choose, choose_example, choose_model, choose_number, slide, upload_image
from pprs.patches import FILL, FILLS, MASKS

PATCH, MAX_PATCH, MAX_MASKS = 2, 256, 9  # 9x9 masks take 3,321 passes


class Patch(Tab[MaskingSettings]):
    """A label that no patch can alter."""

    task, prefix = "patch", "patch-"
    intro = (
        "A sticker changes few pixels, but these completely. Can any change inside one square patch, anywhere in the "
        "image, alter the label? Press Certify."
    )

    def list_fields(self) -> dict[str, dict[str, Field]]:
        masks = "More masks are smaller and hide less, but there are more pairs of them."
        return {
            "": {
                "model": choose_model(self.networks.names, "The classifier behind the masks."),
                "example": choose_example(),
                "patch": choose_number(
                    "side", "the side of the patch", "Patch (side in pixels)",
                    "Of the image that the network takes.", PATCH, 1, MAX_PATCH,
                ),
            },
            "Upload, masks, fill": {
                "upload": upload_image(self.context.limits),
                "masks": slide(
                    "masks", "the number of masks", "Masks (along each axis)", masks, MASKS, (2, MAX_MASKS, 1),
                    integer=True,
                ),
                "fill": choose(
                    "fill", "fill", "Fill", "What stands in the place of hidden pixels, made from visible ones.",
                    FILLS, FILL,
                ),
            },
        }  # fmt: skip

    def read_settings(self, network: Network[Any], chosen: ChosenInput, values: Values) -> MaskingSettings:
        return MaskingSettings(values["patch"], int(values["masks"]), values["fill"])

    def answer(self, request: Request[MaskingSettings], halt: threading.Event) -> Iterator[str]:
        return jobs.show_work(self.context, partial(certify_patch, request), partial(render_patch, request), halt)
