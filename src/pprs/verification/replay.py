"""Draw the votes of rows again, on the recorded engine, and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pprs.certificate import Counts
from pprs.certify.guarantee import CERTIFY, CertifyAnswer
from pprs.classifier import SmoothedClassifier
from pprs.errors import ConfigurationError, PprsError
from pprs.noise import QuantisedImage
from pprs.progress import Progress, stage
from pprs.runners import Work, reopen_answer
from pprs.runs import Binding, Row, RunSettings
from pprs.runs.row import PARTIAL
from pprs.runs.session import check_network, take_probe
from pprs.sampling import Evidence
from pprs.task import Task
from pprs.verification.findings import Findings
from pprs.voting import ESTIMATE, SELECT, check_image, count_votes, error_context


def replay(
    task: Task,
    settings: RunSettings,
    binding: Binding | None,
    chosen: Sequence[Row],
    findings: Findings,
    reporter: Progress,
) -> None:
    """Draw the votes of the chosen rows again, and compare them."""
    try:
        work = reopen_answer(CERTIFY, task, settings, reporter)
    except PprsError as error:
        findings.not_checked.append(f"votes: {error}")
        return
    try:
        check_network(
            work.answer.scorer, work.trials, reporter
        )  # as the run did. It also decides which votes are near ties.
    except ConfigurationError as error:
        findings.mismatch(None, error.message)
        return
    _check_probe(work, binding, findings)
    assert isinstance(work.answer, CertifyAnswer)
    classifier = work.answer.classifier
    total = sum((settings.n0 or 0) + row.samples for row in chosen)
    with stage(reporter, "replay", total, "samples"):
        for row in chosen:
            try:
                example = task.data[row.idx]
            except (PprsError, OSError) as error:
                findings.not_checked.append(f"votes of row {row.idx}: {error}")
                continue
            except IndexError:
                findings.not_checked.append(f"votes of row {row.idx}: the data has no image {row.idx}")
                continue
            try:
                differences = _replay_row(classifier, example.image, settings, row, reporter)
            except PprsError as error:  # it was certified, so it can be again
                differences = [f"its votes cannot be drawn again ({error.message})"]
            else:
                findings.replayed.append(row.idx)
            for text in differences:
                findings.mismatch(row.idx, text)
    findings.count(len(findings.replayed), "votes: drawn again and compared")


def _check_probe(work: Work, binding: Binding | None, findings: Findings) -> None:
    """Compare the scores of the few noisy images by which the run recognises its model."""
    if binding is None or binding.probe is None:
        return
    scorer = work.answer.scorer
    found = take_probe(scorer, work.make_trials, work.subject)
    difference = "it fails on the noisy images"
    if found is not None:
        difference = binding.probe.difference(found, scorer.score_tolerance) or ""
    if difference:
        findings.mismatch(None, f"the scores by which the run recognises its model differ: {difference}")


def _replay_row(
    classifier: SmoothedClassifier, x: torch.Tensor, settings: RunSettings, row: Row, reporter: Progress
) -> list[str]:
    """Return in what the row differs from one that is computed again."""
    source, sampling = classifier.votes, settings.sampling
    with error_context(x, row.idx, classifier.partition):
        image = source.quantise(check_image(x, source.device))
        selected = int(count_votes(source, image, sampling.n0, row.idx, SELECT, reporter.advance).counts.argmax())
        quantisation = image.quantisation if isinstance(image, QuantisedImage) else None
        evidence = Evidence(sampling, settings.noise, image.numel(), source.num_classes, selected, quantisation)
        counts: Counts = np.zeros(source.num_classes, np.int64)
        segments, reason = None, None
        for votes in source.votes(image, range(row.samples), row.idx, ESTIMATE):
            counts = counts + votes.counts
            segments = None if votes.segments is None else (segments or 0) + votes.segments
            evidence.add(counts.tolist())
            reason = reason or evidence.stopped
            reporter.advance(int(votes.counts.sum()))
    if selected != row.selected:
        return [f"selected is {row.selected}, and drawing again selects {selected}"]
    if tuple(counts.tolist()) != row.counts:
        return [f"counts are {list(row.counts)}, and drawing again gives {counts.tolist()}"]
    drawn = replace(
        row, stopped=reason or PARTIAL, p_lower=evidence.p_lower, p_upper=evidence.p_upper,
        mean_segments=None if segments is None else segments / max(row.samples, 1),
    )  # fmt: skip
    return [
        f"{name} is {getattr(row, name)}, and drawing again gives {getattr(drawn, name)}"
        for name in ("stopped", "p_lower", "p_upper", "mean_segments")
        if not _equal(getattr(row, name), getattr(drawn, name))
    ]


def _equal(stored: Any, computed: Any) -> bool:
    if isinstance(stored, float | int) and isinstance(computed, float | int):
        return abs(stored - computed) <= 1e-9 * max(1.0, abs(computed))
    return bool(stored == computed)
