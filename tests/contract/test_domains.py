"""A classifier says whether it classifies images or signals, and refuses the other."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networks
import pytest
import torch

import pprs
from pprs import Model, PprsError, SmoothedClassifier
from pprs.audit import Audit, AuditedImage
from pprs.inputs.domain import DOMAINS, Domain
from pprs.inputs.space import Space
from pprs.metrics import Summary
from pprs.prediction import PredictionSettings
from pprs.prediction.guarantee import state_promise
from pprs.report.summary import list_notes
from pprs.segmentation.segmenter import certify_segmentation


def means(x: torch.Tensor) -> torch.Tensor:
    mean = x.flatten(1).mean(1)
    return torch.stack([mean, 1 - mean], dim=1)


GREY, SIGNAL = torch.full((28, 28), 0.6), torch.full((3, 64), 0.6)
CALLS: dict[str, Callable[[SmoothedClassifier, torch.Tensor], Any]] = {
    "certify": lambda g, x: g.certify(x, n0=5, n=50),
    "predict": lambda g, x: g.predict(x, n=20),
    "counts": lambda g, x: g.counts(x, n=20),
    "check_model": lambda g, x: g.check_model(x),
    "certify_batch": lambda g, x: list(g.certify_batch([x], n0=5, n=50)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_grey_image_without_its_channel_axis_is_refused(name: str) -> None:
    g = SmoothedClassifier(means, 2, 0.25, partition=None)
    assert g.domain is None
    with pytest.raises(PprsError, match=r"a grey image without its channel axis, or of a signal of 28 channels") as e:
        CALLS[name](g, GREY)
    assert e.value.parameter == "domain"
    assert "Pass x[None] for the image" in e.value.message
    CALLS[name](g, GREY[None])
    CALLS[name](g, SIGNAL)  # no image is 3 pixels high
    CALLS[name](SmoothedClassifier(means, 2, 0.25, domain="signal", partition=None), GREY)


@pytest.mark.parametrize(("options", "domain"), [
    ({"domain": "image"}, "image"),
    ({"partition": pprs.Grid(4)}, "image"),
    ({"partition": "slic1d"}, "signal"),
    ({"domain": "signal"}, "signal"),
])  # fmt: skip
@pytest.mark.parametrize("name", CALLS)
def test_the_other_domain_is_refused(name: str, options: dict[str, Any], domain: str) -> None:
    g = SmoothedClassifier(means, 2, 0.25, **options)
    assert g.domain == domain
    own, other = (GREY[None], SIGNAL) if domain == "image" else (SIGNAL, GREY[None])
    CALLS[name](g, own)
    with pytest.raises(PprsError, match=f"expected one {domain} "):
        CALLS[name](g, other)


def test_a_model_says_what_it_classifies() -> None:
    for shape, domain in (((1, 28, 28), "image"), ((28, 28), "signal")):
        g = SmoothedClassifier(Model(networks.SmallNet(), "net", 3, input_shape=shape), noise=0.25, partition=None)
        assert g.domain == domain
    with pytest.raises(
        PprsError, match=r"expected one image \[C, H, W\], got shape \(28, 28\). Pass x\[None\] if this"
    ):
        SmoothedClassifier(
            Model(networks.SmallNet(), "net", 3, input_shape=(1, 28, 28)), noise=0.25, partition=None
        ).certify(GREY)


@pytest.mark.parametrize(("options", "message"), [
    ({"domain": "sound"}, 'unknown domain "sound". There are: image, signal.'),
    ({"domain": "signal", "partition": "slic"}, "`domain` says signal, the partition says image. Make them agree."),
    ({"model": Model(networks.SmallNet(), "net", 3, input_shape=(1, 28, 28)), "partition": "slic1d"},
     "the model says image, the partition says signal"),
])  # fmt: skip
def test_contradictions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PprsError) as caught:
        SmoothedClassifier(
            **{"model": means, "noise": 0.25, "num_classes": None if "model" in options else 2} | options
        )
    assert message in caught.value.message
    assert caught.value.parameter == "domain"


@pytest.mark.parametrize("call", [
    lambda x: pprs.PatchClassifier(means, 2, 2, 3, "mean").certify(x),
    lambda x: pprs.PatchClassifier(means, 2, 2, 3, "mean").predict(x),
    lambda x: certify_segmentation(networks.PixelNet(), x, num_classes=2, noise=0.25, partition=None),
])  # fmt: skip
@pytest.mark.parametrize(("x", "remedy"), [
    (GREY, "Pass x[None] if this is a grey image without its channel axis."),
    (GREY[None, None], "Pass one input at a time, as in x[0]."),
])  # fmt: skip
def test_what_is_about_images_only_takes_images(
    call: Callable[[torch.Tensor], Any], x: torch.Tensor, remedy: str
) -> None:
    with pytest.raises(PprsError) as caught:
        call(x)
    assert "expected one image [C, H, W]" in caught.value.message
    assert caught.value.message.endswith(remedy)


def test_messages_about_signals_say_signal() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 cannot be multiplied")

    with pytest.raises(PprsError, match="^signal 4: shape .* The usual cause is a signal whose size") as caught:
        SmoothedClassifier(fails, 2, 0.25, partition=None).certify(SIGNAL, n0=5, n=50, index=4)
    assert "image" not in str(pickle.loads(pickle.dumps(caught.value)))
    with pytest.raises(PprsError, match="^image 4: shape .* The usual cause is an image whose size"):
        SmoothedClassifier(fails, 2, 0.25, partition=None).certify(GREY[None], n0=5, n=50, index=4)


def summaries(shape: tuple[int, ...]) -> list[Summary]:
    """Summaries of two runs that every note is about."""
    one = Summary(
        "a", 9, (0.5,), (0.4,), (0.6,), (0.5,), 0.1, 0.01, 0.1, 1.0, 1.0, 1.0, 100.0, undecided=3, labelled=False,
        failed=2, sequential=True, not_counted=1, label_choice="cat, dog", space=Space(shapes=(shape,)),
    )  # fmt: skip
    return [one, replace(one, name="b", failed=1, space=Space(shapes=((*shape[:-1], shape[-1] + 1),)))]


def audit() -> Audit:
    """An audit that every note is about."""
    image = AuditedImage(0, 1, 0.5, "scores", "none", 100, 1.0, False, True, untested=3)
    return Audit((image,) * 3, 1e-3, {}, 9)


SETTINGS = PredictionSettings(n=100, alpha=0.001)
TEXTS: dict[str, Callable[[Domain], str]] = {
    "notes of a report": lambda inputs: "\n".join(list_notes(summaries((1, 8, 8)[-inputs.ndim :]))),
    "notes of an audit": lambda inputs: "\n".join(audit().notes(inputs)),
    "promise of predictions": lambda inputs: state_promise(SETTINGS, 3, 5, inputs),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_about_images_and_signals_differ_in_the_noun_only(name: str) -> None:
    of_images, of_signals = TEXTS[name](DOMAINS["image"]), TEXTS[name](DOMAINS["signal"])
    assert "signal" not in of_images
    assert "image" not in of_signals
    assert of_images.count("image") == of_signals.count("signal") > 0


def test_texts_are_reworded_only_where_they_leave() -> None:
    """Progress, errors about an input, what a verification found, and what commands print. Others write the noun."""
    root = Path(pprs.__file__).parent
    places = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "rename"
    }
    files_on_disk = {"runs/remote.py", "testing/store.py"}
    assert places - files_on_disk == {
        "cli/errors.py", "progress.py", "smoothing/samples.py", "verification/findings.py",
    }  # fmt: skip
