"""Why inputs of a run are not certified, and what may help. Estimates only: nothing here is a certificate."""

from __future__ import annotations

from pprs.doctor.diagnosis import Cause, Diagnosis, Problem, extrapolate
from pprs.doctor.examination import Examination, Plan, examine_run

__all__ = ["Cause", "Diagnosis", "Examination", "Plan", "Problem", "examine_run", "extrapolate"]
