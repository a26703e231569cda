"""How things are measured here: alternating, in one process, the best of several, on a stated number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable


def fastest(tasks: dict[str, Callable[[], object]], *, rounds: int = 5, at_least: float = 0.15) -> dict[str, float]:
    """Seconds of each task, the best of several rounds; tasks take turns, so that a busy moment hits all alike."""
    repeats = {}
    for name, task in tasks.items():
        task()  # compile, fill caches
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


def line(result: dict[str, object]) -> str:
    wanted = f"  (wanted {result['wanted']})" if "wanted" in result else ""
    verdict = "" if "met" not in result else "  met" if result["met"] else "  NOT MET"
    return f"{result['what']:74s} {result['value']:8.2f} {result['unit']}{wanted}{verdict}"


def ratio(what: str, value: float, *, at_least: float | None = None, at_most: float | None = None) -> dict[str, object]:
    result: dict[str, object] = {"what": what, "value": round(float(value), 3), "unit": "x"}
    if at_least is not None:
        result |= {"wanted": f">= {at_least:g}", "met": bool(value >= at_least)}
    if at_most is not None:
        result |= {"wanted": f"<= {at_most:g}", "met": bool(value <= at_most)}
    return result
