"""The Label set tab: a set of labels that contains the true one with a promised probability, also under attack."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pprs.app.label_sets import CalibrationStore, SetsSettings, predict_sets, render_sets
from pprs.app.networks import Network
from pprs.app.requests import ChosenInput, Request
from pprs.app.server.context import Context
from pprs.app.tabs import jobs
from pprs.app.tabs.base import Tab, Values
from pprs.app.tabs.fields import (
    Field,
    choose,
    choose_alpha,
    choose_example,
    choose_method,
    choose_model,
    choose_number,
    choose_seed,
    choose_sigma,
    slide,
    upload_file,
    upload_image,
)
from pprs.label_sets.scores import SCORES, Aps

RADIUS, MAX_RADIUS, ALPHA, IMAGES, MAX_IMAGES = 0.25, 5.0, 0.1, 500, 5000
COVERAGES = {f"{1 - alpha:.0%}": alpha for alpha in (0.2, 0.1, 0.05, 0.01)}


class LabelSet(Tab[SetsSettings]):
    """A set of labels, by plain smoothing and a partition, or from a calibration in a file."""

    task, prefix, verb = "sets", "set-", "Predict"
    intro = (
        "Where votes are split, a certificate abstains. A set of labels need not: it contains the true label with a "
        "chosen probability, whatever change up to the radius was made. Press Predict."
    )

    def __init__(self, context: Context, store: CalibrationStore | None = None) -> None:
        super().__init__(context)
        self._store = store or CalibrationStore()

    def list_fields(self) -> dict[str, dict[str, Field]]:
        coverage = "How likely a set is to contain the true label, at least."
        return {
            "": {
                "model": choose_model(self.networks.names),
                "example": choose_example(),
                "sigma": choose_sigma(),
                "radius": slide(
                    "radius", "the radius", "Radius (L2)", "Norm of the changes that the sets withstand.", RADIUS,
                    (0.0, 1.0, 0.01), maximum=MAX_RADIUS,
                ),
            },
            "Upload, partition": {"upload": upload_image(self.context.limits), "A": choose_method()},
            "Coverage, calibration, seed": {
                "alpha": choose_alpha(coverage, "Coverage (probability)", COVERAGES, ALPHA),
                "score": choose(
                    "score", "score", "Score", "How badly a label fits. Sets of aps are never empty.", list(SCORES),
                    Aps.name,
                ),
                "images": choose_number(
                    "images", "the number of calibration images", "Calibration images",
                    "Labelled images of the model, drawn at random.", IMAGES, 1, MAX_IMAGES,
                ),
                "seed": choose_seed(),
                "file": upload_file("or a calibration from `pprs calibrate` (JSON)", [".json"], "file", 120),
            },
        }  # fmt: skip

    def read_settings(self, network: Network[Any], chosen: ChosenInput, values: Values) -> SetsSettings:
        file = Path(values["file"]) if values["file"] else None
        return SetsSettings(
            network.entry.name, network.entry.examples, values["radius"], values["alpha"], values["score"],
            values["images"], file,
        )  # fmt: skip

    def answer(self, request: Request[SetsSettings], halt: threading.Event) -> Iterator[str]:
        work = partial(predict_sets, request, self._store)
        return jobs.show_work(self.context, work, partial(render_sets, request), halt)
