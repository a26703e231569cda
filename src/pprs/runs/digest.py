"""A digest of what a run claims, to name it in a publication."""

from __future__ import annotations

import hashlib
import json

from pprs.runs.run import Run


def digest_run(run: Run) -> str:
    """Return a digest of the settings and rows of a run.

    It does not depend on where the model, the data and the run are stored, nor on how long images took. Rows exported
    as json have the digest of their run. Other formats do not hold all settings.
    """
    stored = run.settings.to_dict()
    settings = {key: stored[key] for key in run.settings.identity() if key in stored and key != "model"}
    partition = None if settings["partition"] is None else run.settings.partition
    if partition is not None and partition.files:
        settings["partition"] = str(partition.without_paths())
    sha = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for row in run.outcomes():
        record = run.guarantee.schema.to_record(row)
        record = {name: value for name, value in record.items() if name not in ("seconds", "name")}
        sha.update(json.dumps(record, sort_keys=True, default=bytes.hex).encode())
    return sha.hexdigest()[:32]
