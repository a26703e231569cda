"""The paper's tables and figures, from a plan in one file: what to certify, and how to draw it."""

from __future__ import annotations

from pprs.reproduce.draw import Drawn, cells_of, draw, models_table, page, read_models, sigmas_of, tell
from pprs.reproduce.plan import Cell, Experiment, Plan
from pprs.reproduce.read import read_plan

__all__ = [
    "Cell", "Drawn", "Experiment", "Plan", "cells_of", "draw", "models_table", "page", "read_models", "read_plan",
    "sigmas_of", "tell",
]  # fmt: skip
