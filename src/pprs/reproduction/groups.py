"""Groups of labels that are certified one after the other, and the rows of all of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pprs._support.extras import extra
from pprs.model.overlay import ADAPTED
from pprs.runs import Run
from pprs.runs.export import to_arrow

with extra():
    import pyarrow


def label_groups(labels: list[int], size: int) -> list[list[int]]:
    """Split the labels that occur into groups of this size. A single label that is left over joins the last group.

    >>> label_groups([7, 5, 5, 3, 1, 9], 2)
    [[1, 3], [5, 7, 9]]
    """
    present = sorted(set(labels))
    groups = [present[i : i + size] for i in range(0, len(present), size)]
    if groups and len(groups[-1]) == 1:
        last = groups.pop()
        if groups:
            groups[-1] += last
    return groups


def join_runs(runs: Sequence[Run], network: str) -> tuple[pyarrow.Table, str, str]:
    """The exported rows of all runs, and the digests of their network and images.

    The labels of a group are numbered after those of the groups before it. A network that the plan trained has its own
    digest. For any other, the runs have digests, each of the network restricted to the run's labels.
    """
    tables, offset = [], 0
    for run in runs:
        # Paths on this machine are of no use to others.
        model, data = (_strip_folders(text or "") for text in (run.settings.model, run.settings.data))
        settings = dataclasses.replace(run.settings, model=model, data=data)
        tables.append(to_arrow([_shift_classes(row, offset) for row in run.rows()], settings))
        offset += (run.settings.num_classes or 0) if len(runs) > 1 else 0
    networks = [str(run.settings.model_digest) for run in runs]
    images = [str(run.settings.data_fingerprint) for run in runs]
    return pyarrow.concat_tables(tables), network or _combine(networks), _combine(images)


def _strip_folders(text: str) -> str:
    """Return the name of a file without its folder, and that of an adapted model without both of its folders."""
    return ADAPTED.join(Path(part).name for part in text.split(ADAPTED))


def _shift_classes(row: Any, offset: int) -> Any:
    """The row with its classes numbered from `offset` on."""
    classes = {name: getattr(row, name, None) for name in ("label", "prediction", "selected")}
    return dataclasses.replace(row, **{name: label + offset for name, label in classes.items() if label is not None})


def _combine(digests: Sequence[str]) -> str:
    """One digest for all groups of labels. If all are equal, that one."""
    return digests[0] if len(set(digests)) == 1 else digest_texts(digests)


def digest_texts(parts: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
