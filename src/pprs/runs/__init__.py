"""Certification runs: settings, rows, storage and export."""

from __future__ import annotations

from pprs.runs.binding import Binding, describe_parts
from pprs.runs.check import Mismatch, RowCheck, check_row, check_rows
from pprs.runs.columns import same_value
from pprs.runs.digest import digest_run
from pprs.runs.export import export
from pprs.runs.folder import list_runs
from pprs.runs.frame import RunFrame, read_frame, read_frames, require_radii, space_of
from pprs.runs.guarantee import Answer, Guarantee, Key, Known, Question
from pprs.runs.provenance import Provenance
from pprs.runs.registry import GUARANTEES, find_guarantee, import_guarantee
from pprs.runs.remote import check_out, open_run_folder
from pprs.runs.replay import Replay, chance_unnoticed, choose_rows, describe_chance
from pprs.runs.row import COLUMNS, Failure, Row
from pprs.runs.run import ExportedRun, Run, StoredRun, open_run
from pprs.runs.session import Session
from pprs.runs.settings import RunSettings
from pprs.runs.store import FILE, RunFile, RunWriter

__all__ = [
    "COLUMNS",
    "FILE",
    "GUARANTEES",
    "Answer",
    "Binding",
    "ExportedRun",
    "Failure",
    "Guarantee",
    "Key",
    "Known",
    "Mismatch",
    "Provenance",
    "Question",
    "Replay",
    "Row",
    "RowCheck",
    "Run",
    "RunFile",
    "RunFrame",
    "RunSettings",
    "RunWriter",
    "Session",
    "StoredRun",
    "chance_unnoticed",
    "check_out",
    "check_row",
    "check_rows",
    "choose_rows",
    "describe_chance",
    "describe_parts",
    "digest_run",
    "export",
    "find_guarantee",
    "import_guarantee",
    "list_runs",
    "open_run",
    "open_run_folder",
    "read_frame",
    "read_frames",
    "require_radii",
    "same_value",
    "space_of",
]
