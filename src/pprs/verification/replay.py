"""Answer the inputs of rows again, on the recorded engine, and compare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pprs.errors import ConfigurationError, PprsError
from pprs.progress import Progress, stage
from pprs.runners import Work, reopen_answer
from pprs.runs import Binding, Guarantee, Known, Question
from pprs.runs.session import check_network, take_probe
from pprs.runs.subject import Subject
from pprs.verification.findings import Findings


def replay(
    guarantee: Guarantee[Any, Any],
    subject: Subject,
    settings: Any,
    binding: Binding | None,
    chosen: Iterable[Any],
    passes: int,
    findings: Findings,
    reporter: Progress,
) -> None:
    """Answer the inputs of the chosen rows again, and compare them. `passes` are the expected ones."""
    what = guarantee.replayed.partition(":")[0]
    try:
        work = reopen_answer(guarantee, subject, settings, reporter)
    except PprsError as error:
        findings.not_checked.append(f"{what}: {error.message}")
        return
    try:
        # As the run did. It also decides which votes are near ties.
        check_network(work.answer.scorer, work.trials, reporter)
    except ConfigurationError as error:
        findings.mismatch(None, error.message)
        return
    _check_probe(work, binding, findings)
    count = 0
    with stage(reporter, "replay", passes, "samples"):
        for row in chosen:
            if _replay_row(work, row, findings, reporter):
                count += 1
    findings.count(count, guarantee.replayed)


def _replay_row(work: Work, row: Any, findings: Findings, reporter: Progress) -> bool:
    """Answer the input of a row again. Return whether that was possible."""
    guarantee, data, key = work.guarantee, work.subject.data, work.guarantee.schema.key(row)
    what = guarantee.replayed.partition(":")[0]
    try:
        example = data[row.idx]
        known = Known(data.name_of(row.idx), example.file_shape, example.truth)
    except (PprsError, OSError) as error:
        findings.not_checked.append(f"{what} of row {row.idx}: {error}")
        return False
    except IndexError:
        findings.not_checked.append(f"{what} of row {row.idx}: the data has no image {row.idx}")
        return False
    try:
        differences = guarantee.replay(work.answer, row, Question(key, example.image), known, reporter.advance)
    except PprsError as error:  # it was answered, so it can be again
        findings.mismatch(row.idx, f"it cannot be answered again ({error.message})")
        return False
    if row.idx not in findings.replayed:
        findings.replayed.append(row.idx)
    for text in differences:
        findings.mismatch(row.idx, text)
    return True


def _check_probe(work: Work, binding: Binding | None, findings: Findings) -> None:
    """Compare the scores of the few inputs by which the run recognises its model."""
    if binding is None or binding.probe is None:
        return
    scorer = work.answer.scorer
    found = take_probe(scorer, work.make_trials, work.subject)
    difference = "it fails on the noisy images"
    if found is not None:
        difference = binding.probe.difference(found, scorer.score_tolerance) or ""
    if difference:
        findings.mismatch(None, f"the scores by which the run recognises its model differ: {difference}")
