"""Reproduce the paper's tables and figures from a plan: a file that says what to certify and what to draw."""

from __future__ import annotations

from pprs.reproduction.draw import (
    ExperimentResult,
    draw_experiment,
    experiment_cells,
    experiment_sigmas,
    models_table,
    render_page,
    tabulate,
)
from pprs.reproduction.plan import Cell, Experiment, ReproductionPlan
from pprs.reproduction.read import PLANS, read_plan
from pprs.reproduction.results import Results
from pprs.reproduction.run import Reproduction, StaleRows, reproduce

__all__ = [
    "PLANS", "Cell", "Experiment", "ExperimentResult", "Reproduction", "ReproductionPlan", "Results", "StaleRows",
    "draw_experiment", "experiment_cells", "experiment_sigmas", "models_table", "read_plan", "render_page",
    "reproduce", "tabulate",
]  # fmt: skip
