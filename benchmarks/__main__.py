"""Benchmarks of speed and memory, as ratios to a peer: `make bench`, or `python -m benchmarks partitions`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks import (
    baselines,
    certify,
    dither,
    engines,
    exact,
    first_use,
    guarantees,
    noise,
    partitions,
    quality,
    ray,
    samples,
    signals,
    threads,
    training,
)
from benchmarks.timing import format_result
from pprs._support.threads import keep_memory

TOPICS = {
    "first-use": first_use.measure,
    "partitions": partitions.measure,
    "baselines": baselines.measure,
    "signals": signals.measure,
    "quality": quality.measure,
    "certify": certify.measure,
    "threads": threads.measure,
    "engines": engines.measure,
    "noise": noise.measure,
    "exact": exact.measure,
    "dither": dither.measure,
    "samples": samples.measure,
    "guarantees": guarantees.measure,
    "ray": ray.measure,
    "training": training.measure,
}
OUT = Path("bench.json")


def main() -> None:
    topics = sys.argv[1:] or list(TOPICS)
    unknown = set(topics) - set(TOPICS)
    if unknown:
        sys.exit(f"unknown benchmark {', '.join(unknown)}. There are: {', '.join(TOPICS)}.")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the machine is busy (load {load:.1f}), so the ratios will vary")
    keep_memory()  # as in every command
    results = []
    for topic in topics:
        for result in TOPICS[topic]():
            print(format_result(result), flush=True)
            results.append({"topic": topic, **result})
    OUT.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
