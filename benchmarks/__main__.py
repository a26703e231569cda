"""Speed and memory, as ratios against a peer in the same run: `make bench`, or `python -m benchmarks partitions`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks import baselines, certify, engines, noise, partitions, quality, ray, samples, threads, training
from benchmarks.timing import line
from pprs._threads import keep_memory

TOPICS = {
    "partitions": partitions.measure,
    "baselines": baselines.measure,
    "quality": quality.measure,
    "certify": certify.measure,
    "threads": threads.measure,
    "engines": engines.measure,
    "noise": noise.measure,
    "samples": samples.measure,
    "ray": ray.measure,
    "training": training.measure,
}
OUT = Path("bench.json")


def main() -> None:
    chosen = sys.argv[1:] or list(TOPICS)
    unknown = set(chosen) - set(TOPICS)
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}; there are {', '.join(TOPICS)}")
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"the machine is busy (load {busy:.1f}): the ratios will wobble")
    keep_memory()  # as every command does
    results = []
    for topic in chosen:
        for result in TOPICS[topic]():
            print(line(result), flush=True)
            results.append({"topic": topic, **result})
    OUT.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
