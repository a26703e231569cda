"""`pprs demo --sets`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pprs.cli.console import console, progress, say
from pprs.data import fair_order
from pprs.label_sets import LabelSets, SetRequest, attack_sets, compare_sets, list_notes, state_promise
from pprs.label_sets.attack import AttackOptions
from pprs.label_sets.page import write_set_report
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.runs.subject import load_subject

SIGMA, RADIUS, ALPHA, CALIBRATION, ATTACKED = 0.25, 0.25, 0.1, 500, 10
METHODS = {"plain": "none", "blur": "blur:size=3", "soft": "slic/soft/shifts:k=4"}


def demo_sets(model: Path, data: str, out: Path) -> None:
    """Calibrate label sets with half of the images, predict and attack the other half, and write a report."""
    subject = load_subject(str(model), data)
    calibration = replace(subject, images=sorted(fair_order(subject.images, 0)[:CALIBRATION]))
    evaluations = []
    for name, partition in METHODS.items():
        request = SetRequest(Gaussian(SIGMA), parse_partition(partition), RADIUS, ALPHA)
        sets = LabelSets.of_subject(calibration, request, progress=progress.quiet())
        sets.save(out / f"sets-{name}.json")
        evaluation = sets.evaluate_subject(subject, progress=progress.quiet())
        attacked = attack_sets(sets, subject, AttackOptions(ATTACKED, 10), progress=progress.quiet())
        evaluations.append(replace(evaluation, attacked=attacked))
    say(f"what is promised: {state_promise(sets.settings)}.")
    console.print(compare_sets(evaluations).to_rich())
    for note in list_notes(evaluations):
        say(note)
    page = out / "sets.html"
    write_set_report(evaluations, subject, page)
    say(f"\nThe report with example images: {page.resolve()}")
