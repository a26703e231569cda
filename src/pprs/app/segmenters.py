"""The segmentation network of the page: the user's own, or a small one for the built-in scenes."""

from __future__ import annotations

from dataclasses import replace

import torch

from pprs.app.catalog import EXPECTED_SAMPLES, name_model
from pprs.app.networks import ImageEntry, LoadedModel, Networks, list_examples
from pprs.model import Model
from pprs.noise import Gaussian
from pprs.progress import Progress
from pprs.runs.engine import EngineOptions
from pprs.runs.session import open_session
from pprs.runs.subject import Subject, find_usable
from pprs.segmentation import SmoothedSegmenter
from pprs.segmentation.data import SCENES, open_masked
from pprs.segmentation.masks import MaskedSet, Prepared
from pprs.segmentation.subject import open_network

TRIAL_NOISE = Gaussian(0.25)  # for the choice of an engine


def labels_pixels(net: Model, data: str, split: str | None = None) -> bool:
    """Return whether a network labels every pixel, as far as it can be told."""
    if net.task is not None:
        return net.task == "segment"
    images = open_masked(data, split=split)
    with torch.inference_mode():
        try:
            scores = net.module.eval()(net.prepare(find_usable(images, range(len(images))).image)[None].clone())
        except Exception:  # a user's model may raise anything; the error is reported when it is loaded
            return False
    return isinstance(scores, torch.Tensor) and scores.ndim == 4


def load_segmenter(model: str | Model, masked: MaskedSet, engine: str, progress: Progress) -> LoadedModel:
    """Load a segmentation network on its engine, with its images and masks."""
    net, text = open_network(model, masked, range(len(masked)))
    # Messages on the page name the model, but must not reveal where it is stored on this machine.
    net = replace(net, source=name_model(model))
    assert net.num_classes is not None
    subject = Subject(net, Prepared(masked, net, net.num_classes), range(len(masked)), None, text)
    session, chosen = open_session(
        subject, subject.trial_images(TRIAL_NOISE, None, 0), noise=TRIAL_NOISE, options=EngineOptions(engine),
        passes=EXPECTED_SAMPLES, message=progress.message,
    )  # fmt: skip
    segmenter = SmoothedSegmenter(session.network, session.num_classes, TRIAL_NOISE)
    segmenter.check_model(subject.sample.image, index=subject.sample.index)
    return LoadedModel(net, replace(net, module=chosen.model.module), chosen.engine, subject.data)


def list_segmenters(engine: str = "auto") -> Networks[ImageEntry]:
    """List the built-in network for scenes of digits."""
    scenes = open_masked(SCENES)
    entry = ImageEntry(
        "scenes (built-in network)",
        lambda job: load_segmenter("builtin:scenes", scenes, engine, job),
        list_examples(len(scenes), "scene"),
    )
    return Networks([entry])
