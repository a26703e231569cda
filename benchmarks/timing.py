"""Measurement: tasks alternate in one process on a fixed number of threads, and the best of several runs counts."""

from __future__ import annotations

import time
from collections.abc import Callable


def fastest(tasks: dict[str, Callable[[], object]], *, rounds: int = 5, at_least: float = 0.15) -> dict[str, float]:
    """Return the seconds of each task, the best of several rounds.

    Tasks take turns, so that other load on the machine affects all alike. A round repeats short tasks until they have
    taken `at_least` seconds.
    """
    repeats = {}
    for name, task in tasks.items():
        task()  # warm up: compile kernels, fill caches
        began = time.perf_counter()
        task()
        repeats[name] = max(1, int(at_least / max(time.perf_counter() - began, 1e-9)))
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            began = time.perf_counter()
            for _ in range(repeats[name]):
                task()
            best[name] = min(best[name], (time.perf_counter() - began) / repeats[name])
    return best


def format_result(result: dict[str, object]) -> str:
    """Format a result as one line of text."""
    wanted = f"  (wanted {result['wanted']})" if "wanted" in result else ""
    verdict = "" if "met" not in result else "  met" if result["met"] else "  NOT MET"
    return f"{result['what']:74s} {result['value']:8.2f} {result['unit']}{wanted}{verdict}"


def ratio(what: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> dict[str, object]:
    """Return a result for a ratio, with its target if there is one."""
    result: dict[str, object] = {"what": what, "value": round(float(value), 3), "unit": "x"}
    if at_least is not None:
        result |= {"wanted": f">= {at_least:g}", "met": bool(value >= at_least)}
    if at_most is not None:
        result |= {"wanted": f"<= {at_most:g}", "met": bool(value <= at_most)}
    return result
