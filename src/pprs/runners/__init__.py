"""Runners decide where images are certified. The driver hands them out and writes the results."""

from __future__ import annotations

from pprs.runners.base import Done, Execution, Failed, Item, Runner, Work
from pprs.runners.budget import FIRST_ROUND, Budget, parse_budget, run_budget
from pprs.runners.driver import GALLERY, Recorder, RunProgress, run_images
from pprs.runners.held import Held
from pprs.runners.local import Local, LocalExecution
from pprs.runners.processes import Processes, ProcessPool
from pprs.runners.ray import Ray, RayPool
from pprs.runners.worker import Job

# The names for `--runner`.
RUNNERS: dict[str, type[Runner]] = {runner.name: runner for runner in (Local, Processes, Ray)}

__all__ = [
    "FIRST_ROUND",
    "GALLERY",
    "RUNNERS",
    "Budget",
    "Done",
    "Execution",
    "Failed",
    "Held",
    "Item",
    "Job",
    "Local",
    "LocalExecution",
    "ProcessPool",
    "Processes",
    "Ray",
    "RayPool",
    "Recorder",
    "RunProgress",
    "Runner",
    "Work",
    "parse_budget",
    "run_budget",
    "run_images",
]
