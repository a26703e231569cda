"""A classifier can be adapted to masks without labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import Record
from tiny import trained, unlabelled

from pprs.adaptation.distillation import distil
from pprs.errors import ConfigurationError
from pprs.model import Model
from pprs.model.changes import Changes
from pprs.model.overlay import load_overlay
from pprs.patches import MaskGrid, adapt_to_masks, certify_patches
from pprs.patches.adaptation import MaskedProblem
from pprs.patches.fills import Constant


def test_a_classifier_is_adapted_to_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def distil_briefly(problem: MaskedProblem, changes: Changes, *, progress: Record, deadline: float) -> Changes:
        return distil(problem, changes, progress=progress, steps=30)

    monkeypatch.setattr("pprs.patches.adaptation.distil", distil_briefly)
    monkeypatch.setattr("pprs.patches.adaptation.VIEWS", 8)
    net, images, out = Model(trained(), "tiny", 4), unlabelled(80).clamp(0, 1), tmp_path / "a.safetensors"
    problem = MaskedProblem(net, images, MaskGrid(12, 12, 2, 3), Constant())
    assert torch.equal(problem.perturb(images, 3), problem.perturb(images, 3))
    assert not torch.equal(problem.perturb(images, 3), problem.perturb(images, 4))
    options = {"patch": 2, "masks": 3, "fill": "constant", "out": out, "budget": "1s"}
    progress = Record()
    adaptation = adapt_to_masks(net, images, progress=progress, **options).adaptation  # type: ignore[arg-type]
    assert adaptation.noise == "masks:patch=2,masks=3,fill=constant:value=0.0"
    assert adaptation.before is not None
    assert adaptation.after is not None, f"the training did not help: {progress.messages}"
    assert adaptation.after.radius > adaptation.before.radius
    again = adapt_to_masks(net, images, progress=progress, **options)  # type: ignore[arg-type]
    assert again.adaptation == load_overlay(out).adaptation
    assert progress.messages[-1].endswith("is complete")
    with pytest.raises(ConfigurationError, match="differs in noise"):
        adapt_to_masks(net, images, progress=False, **{**options, "patch": 3})  # type: ignore[arg-type]
    used = certify_patches(
        net, (images[:3], np.zeros(3, int)), patch=3, masks=3, fill="constant", adapted=out, progress=progress
    )
    assert len(used) == 3
    warnings = " ".join(message for message in progress.messages if message.startswith("warning"))
    assert "adapted to masks:patch=2" in warnings
    assert "adapted with 3 of these 3 images" in warnings


def test_an_interrupted_adaptation_to_masks_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> Changes:
        raise KeyboardInterrupt

    monkeypatch.setattr("pprs.patches.adaptation.VIEWS", 2)
    net, images, out, progress = (
        Model(trained(), "tiny", 4),
        unlabelled(60).clamp(0, 1),
        tmp_path / "a.safetensors",
        Record(),
    )
    options = {"patch": 2, "masks": 3, "fill": "constant", "out": out, "budget": "1s", "progress": progress}
    monkeypatch.setattr("pprs.patches.adaptation.distil", interrupt)
    with pytest.raises(KeyboardInterrupt):
        adapt_to_masks(net, images, **options)  # type: ignore[arg-type]
    begun = load_overlay(out).adaptation
    assert ([step.method for step in begun.steps], begun.complete) == (["none"], False)
    monkeypatch.setattr("pprs.patches.adaptation.distil", lambda problem, changes, **_: changes)
    finished = adapt_to_masks(net, images, **options).adaptation  # type: ignore[arg-type]
    assert "is begun, with 1 steps finished" in " ".join(progress.messages)
    assert [step.method for step in finished.steps] == ["none", "distill"]
    assert finished.complete
    assert not finished.methods, "what is no better is not kept"
