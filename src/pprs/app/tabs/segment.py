"""The Segment tab: the label map of one image, certified at all pixels at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from pprs.app.label_maps import MapSettings, certify_maps, render_label_maps
from pprs.app.networks import Network, Networks
from pprs.app.requests import ChosenInput, Request
from pprs.app.tabs import jobs
from pprs.app.tabs.base import Tab, Values
from pprs.app.tabs.fields import (
    Field,
    choose_alpha,
    choose_example,
    choose_method,
    choose_model,
    choose_samples,
    choose_seed,
    choose_sigma,
    slide,
    upload_image,
)
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.masks import MaskedSet

N0, N, TAU = 20, 100, 0.75


class Segment(Tab[MapSettings]):
    """A label map, by plain smoothing and a partition."""

    task, prefix = "segment", "segment-"
    intro = "Every pixel gets a label, or none if nothing is proved about it. Press Certify."

    def find_networks(self) -> Networks[Any]:
        return self.context.segmenters

    def list_fields(self) -> dict[str, dict[str, Field]]:
        tau = "A label must occur in more than this share. Larger: a larger radius, and more abstentions."
        return {
            "": {
                "model": choose_model(self.networks.names, "The network that labels pixels."),
                "example": choose_example(),
                "sigma": choose_sigma(),
            },
            "Upload, share, partition": {
                "upload": upload_image(self.context.limits),
                "tau": slide("tau", "tau", "Tau (share of the noisy copies)", tau, TAU, (0.51, 0.99, 0.01)),
                "A": choose_method(),
            },
            "Samples, confidence, seed": {
                "n": choose_samples(
                    self.context.limits, "Samples (per method)",
                    f"Noisy copies that test the labels, after {N0} that select them.", N, 1,
                ),
                "alpha": choose_alpha("The largest probability that any claim of a map is false."),
                "seed": choose_seed(),
            },
        }  # fmt: skip

    def read_settings(self, network: Network[Any], chosen: ChosenInput, values: Values) -> MapSettings:
        sampling = SegmentationSampling(values["tau"], N0, values["n"], values["alpha"])
        data = None if network.loaded is None else network.loaded.data
        known = isinstance(data, MaskedSet) and not values["upload"]
        return MapSettings(sampling, data.mask_of(chosen.index) if known and isinstance(data, MaskedSet) else None)

    def answer(self, request: Request[MapSettings], halt: threading.Event) -> Iterator[str]:
        return jobs.show_work(self.context, partial(certify_maps, request), partial(render_label_maps, request), halt)
