"""What objects are at a glance: one true line, and in a notebook a table in which nothing is markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import networks
import pytest
import torch

import pprs
from pprs import Model, SmoothedClassifier
from pprs.data import as_image_set


def scores(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.mean((1, 2, 3)), 1 - x.mean((1, 2, 3))], dim=1)


X = torch.full((1, 8, 8), 0.6)
HOSTILE = "<script>alert('x')</script>&\""
CLASSIFIER = SmoothedClassifier(scores, 2, 0.5, "grid:size=4")


def objects(folder: Path) -> dict[str, Any]:
    run = pprs.certify_dataset(
        networks.SmallNet(), networks.IMAGES[:2], noise=0.5, sampling=pprs.Sampling(n0=5, n=50),
        out=folder / HOSTILE.replace("/", "_"), progress=False, engine="torch", partition=None,
    )  # fmt: skip
    data = as_image_set((networks.IMAGES, torch.arange(60) % 3))
    data.source, data.class_names = HOSTILE, ("a", "b", "c")
    return {
        "certificate": CLASSIFIER.certify(X, n0=5, n=100),
        "abstention": CLASSIFIER.certify(torch.full((1, 8, 8), 0.5), n0=5, n=50),
        "prediction": CLASSIFIER.predict(X, n=100),
        "classifier": CLASSIFIER,
        "patches": pprs.PatchClassifier(scores, 2, 2, 3, "mean"),
        "model": Model(networks.SmallNet(), HOSTILE, 3, input_shape=(1, 8, 8)),
        "sampling": pprs.Sampling(n=500, stop="radius:0.25"),
        "data": data,
        "run": run,
    }


EXPECTED = {
    "certificate": "<Certificate: class 0, L2 radius ",
    "abstention": "<Certificate: class abstained, input 8x8 grey image, noise gaussian:sigma=0.5, ",
    "prediction": "<Prediction: class 0, confidence 99.9%, samples 100>",
    "classifier": "<SmoothedClassifier: model scores, classes 2, noise gaussian:sigma=0.5, partition grid:size=4, "
    "arithmetic auto, of images>",
    "patches": "<PatchClassifier: model scores, classes 2, patch 2x2, masks 3x3, fill mean>",
    "model": f"<Model: source {HOSTILE}, classes 3, input 8x8 grey image>",
    "sampling": "Sampling(n0=100, n=500, alpha=0.001, bound='one-sided', stop='radius:0.25')",
    "data": "inputs 60, classes 3, source <script>",
    "run": "<Run ",
}  # fmt: skip


class Reader(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.text = list[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_objects_are_shown_in_a_line_and_as_a_table(tmp_path: Path) -> None:
    for name, value in objects(tmp_path).items():
        line, table = repr(value), Reader(value._repr_html_())
        assert EXPECTED[name] in line, line
        assert "\n" not in line
        assert len(line) < 300 + len(str(tmp_path))
        assert set(table.tags) <= {"table", "caption", "tr", "th", "td"}, name
        assert type(value).__name__.removeprefix("Stored") in table.text or name == "data"
    assert "<script>" not in objects(tmp_path / "again")["run"]._repr_html_()


def test_the_radius_that_is_shown_is_not_above_the_certified_one() -> None:
    certificate = CLASSIFIER.certify(X, n0=5, n=100)
    shown = float(repr(certificate).partition("radius ")[2].partition(",")[0])
    assert 0 <= certificate.radius - shown < 0.001


@pytest.mark.parametrize("partition", [None, "grid:size=2"])
def test_what_is_shown_is_what_was_used(partition: str | None) -> None:
    g = SmoothedClassifier(networks.SmallNet(), 3, 0.25, partition)
    assert f"partition {g.certify(X, n0=5, n=50).partition}" in repr(g)
    assert "model SmallNet, classes 3, noise gaussian:sigma=0.25" in repr(g)
