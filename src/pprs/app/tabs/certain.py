"""The Certain tab: an image behind thresholds, whose votes are all counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from pprs.app.counted import ThresholdSettings, certify_counted, render_counted
from pprs.app.networks import Network
from pprs.app.partition_forms import ESTIMATE_FORMS, make_estimate
from pprs.app.requests import ChosenInput, Request
from pprs.app.tabs import jobs
from pprs.app.tabs.base import Tab, Values
from pprs.app.tabs.fields import Field, choose, choose_example, choose_method, choose_model, upload_image
from pprs.dither import TEMPLATES, Dither
from pprs.dither.templates import CHANNELS

LEVELS, INITIAL = ("255", "510", "1020", "2040", "4080"), "510"


class Certain(Tab[ThresholdSettings]):
    """A label that no small change alters, without noise and without sampling."""

    task, prefix = "certain", "certain-"
    intro = (
        "Every value hides behind a threshold, and the network votes once for each position of the thresholds. All "
        "votes are counted, so what they prove is certain. Press Certify."
    )

    def list_fields(self) -> dict[str, dict[str, Field]]:
        levels = "More certify larger changes, but show less at a time. A certificate takes as many passes."
        template = "Where thresholds lie: spread evenly (r2, blue), or each drawn by itself (random)."
        channels = "Whether all channels of a pixel have one threshold, or each its own."
        return {
            "": {
                "model": choose_model(self.networks.names, "The classifier behind the thresholds."),
                "example": choose_example(),
                "levels": choose(
                    "levels", "number of thresholds", "Thresholds (number)", levels, LEVELS, INITIAL, as_radio=True
                ),
            },
            "Upload, template, partition": {
                "upload": upload_image(self.context.limits),
                "template": choose("template", "template", "Template", template, TEMPLATES, next(iter(TEMPLATES))),
                "channels": choose("channels", "channels", "Channels", channels, CHANNELS, CHANNELS[0]),
                "A": choose_method(
                    forms=ESTIMATE_FORMS, example="slic:n_segments=80, local:sigma=0.7/slic", make_method=make_estimate,
                    label="Partition", info="What the estimate of the image is averaged over.",
                ),
            },
        }  # fmt: skip

    def read_settings(self, network: Network[Any], chosen: ChosenInput, values: Values) -> ThresholdSettings:
        return ThresholdSettings(Dither(int(values["levels"]), values["template"], values["channels"]), values["A"])

    def answer(self, request: Request[ThresholdSettings], halt: threading.Event) -> Iterator[str]:
        return jobs.show_work(self.context, partial(certify_counted, request), partial(render_counted, request), halt)
