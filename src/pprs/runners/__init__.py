"""Runners decide where images are certified. The driver hands them out and writes the results."""

from __future__ import annotations

from pprs.runners.base import Done, Execution, Failed, Item, Runner, Work
from pprs.runners.budget import FIRST_ROUND, Budget, parse_budget, parse_time, run_budget
from pprs.runners.cost import RunLimits, apply_limits
from pprs.runners.dataset import run_dataset
from pprs.runners.driver import GALLERY, InputReader, Recorder, RunProgress, run_inputs
from pprs.runners.held import Held
from pprs.runners.local import Local, LocalExecution
from pprs.runners.options import RunOptions
from pprs.runners.processes import Processes, ProcessPool
from pprs.runners.ray import Ray, RayPool
from pprs.runners.run import describe_failures, fit_in_memory, reopen_answer, run_subject
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
    "InputReader",
    "Item",
    "Job",
    "Local",
    "LocalExecution",
    "ProcessPool",
    "Processes",
    "Ray",
    "RayPool",
    "Recorder",
    "RunLimits",
    "RunOptions",
    "RunProgress",
    "Runner",
    "Work",
    "apply_limits",
    "describe_failures",
    "fit_in_memory",
    "parse_budget",
    "parse_time",
    "reopen_answer",
    "run_budget",
    "run_dataset",
    "run_inputs",
    "run_subject",
]
