"""Which images, in what order, how far each, where, and what is written when."""

from __future__ import annotations

from pprs.errors import WrongSettings
from pprs.runner.base import Done, Failed, Item, Runner, Watcher
from pprs.runner.budget import FIRST_ROUND, Budget, parse_budget, run_budget
from pprs.runner.choice import accuracy_error, choose, fair_order
from pprs.runner.driver import GALLERY, png, run_images, run_local
from pprs.runner.local import Local
from pprs.runner.processes import Processes
from pprs.runner.ray import Ray
from pprs.runner.worker import Job

# What `--runner` may name.
RUNNERS: dict[str, type[Runner]] = {"local": Local, "processes": Processes, "ray": Ray}

__all__ = [
    "FIRST_ROUND",
    "GALLERY",
    "RUNNERS",
    "Budget",
    "Done",
    "Failed",
    "Item",
    "Job",
    "Local",
    "Processes",
    "Ray",
    "Runner",
    "Watcher",
    "WrongSettings",
    "accuracy_error",
    "choose",
    "fair_order",
    "parse_budget",
    "png",
    "run_budget",
    "run_images",
    "run_local",
]
