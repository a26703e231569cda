"""What a certification run says as a whole."""

from __future__ import annotations

from pprs.inputs.space import Space, state_claim
from pprs.runs.guarantee import Metric, RunSummary
from pprs.runs.row import Row
from pprs.runs.run import Run
from pprs.smoothing.bounds import clopper_pearson_interval
from pprs.smoothing.certificate import confidence, state_arithmetic


def summarise_certification(run: Run) -> RunSummary:
    """Return the claim of a certification run, certified accuracy, and the average certified radius."""
    settings, rows, failures = run.settings, 0, tuple(run.failures())
    certified = correct = labelled = 0
    radii, all_radii, shapes = 0.0, 0.0, set[tuple[tuple[int, ...], tuple[int, ...] | None]]()
    row: Row
    for row in run.iter_rows():
        rows += 1
        certified += row.prediction is not None
        correct, labelled = correct + row.correct, labelled + (row.label is not None)
        radii, all_radii = radii + row.radius * row.correct, all_radii + row.radius
        if row.shape is not None:
            shapes.add((row.shape, row.file_shape))
    count = rows + len(failures)
    if not count:
        return RunSummary((), (), 0, failures)
    if not labelled and all(failure.label is None for failure in failures):
        correct, radii = certified, all_radii
    else:
        labelled = count
    space = Space.of(settings.pixels, settings.preprocess, (s for s, _ in shapes), (f for _, f in shapes))
    claims: tuple[str, ...] = ()
    if certified and settings.alpha is not None:
        claim = state_claim("its radius", f"{space}" if shapes else "the image")
        claims = (
            f"{certified} of {count} images have a certificate: {claim}, with {confidence(settings.alpha)} confidence "
            f"for each{state_arithmetic(settings.arithmetic, settings.levels)}",
        )
    low, high = clopper_pearson_interval(correct, count)
    accuracy = Metric("certified accuracy" if labelled else "certified", correct / count, float(low), float(high))
    average = Metric("average certified radius", radii / count, unit="L2")
    return RunSummary(claims, (accuracy, average), count, failures)
