"""The paper's tables and figures, from a plan in one file: what to certify, and how to draw it."""

from __future__ import annotations

from pprs.reproduction.draw import Drawn, cells_of, draw, models_table, page, read_models, sigmas_of, tell
from pprs.reproduction.plan import Cell, Experiment, Plan
from pprs.reproduction.read import PLANS, read_plan
from pprs.reproduction.run import Reproduction, StaleRows, reproduce

__all__ = [
    "PLANS", "Cell", "Drawn", "Experiment", "Plan", "Reproduction", "StaleRows", "cells_of", "draw", "models_table",
    "page", "read_models", "read_plan", "reproduce", "sigmas_of", "tell",
]  # fmt: skip
