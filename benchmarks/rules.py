"""Scan the options that follow the noise by certified radius, and check the rules on other networks.

    python -m benchmarks.rules scan  VOTES.jsonl --name mnist --model M.safetensors --data mnist --split train
    python -m benchmarks.rules check VOTES.jsonl --name photos --model efficientnet-lite0 --data FOLDER
    python -m benchmarks.rules table VOTES.jsonl TABLE.csv

`scan` measures many options of each partition, and `check` the rules: the former ones, which were fitted to the error
of the averaged image, and the present ones. Both append one line per noise and partition, and skip those that are
there, so that they can be interrupted. All partitions get the same images and the same noise. Without labels, the
correct label is the network's for the clean image. With many labels, votes are also counted among ten at a time.
docs/results/rules.md shows the tables (docs/results/rules.py writes them).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pprs import Gaussian
from pprs._support import threads as _threads
from pprs.noise import keyed_rng
from pprs.partition import Felzenszwalb, Partition, Quickshift, Shifts, Slic, Soft, parse_partition
from pprs.reproduction.former_rules import FORMER, PRESENT, resolve_by
from pprs.runs.engine import choose_engine
from pprs.runs.subject import load_subject
from pprs.smoothing.bounds import clopper_pearson_lower, mean_error
from pprs.smoothing.voting import TUNE

SEED, BATCH, GROUP = 7, 32, 10
P_MAX = clopper_pearson_lower(1000, 1000, 0.001)  # no radius above what 1000 unanimous votes would prove
HARD = ("slic", "felzenszwalb", "quickshift")
COLUMNS = (
    "network", "shape", "sigma", "partition", "images", "samples", "radius", "gain", "error", "top_label", "segments",
)  # fmt: skip


def scan_options(sigma: float, shape: tuple[int, int, int]) -> Iterator[Partition]:
    """Yield variations of each partition around lengths and colours that scale with the square root of sigma."""
    _, height, width = shape
    root, least = math.sqrt(sigma), 110 * sigma**1.4
    for spacing, colour, blur in [
        *itertools.product((0.5, 0.75, 1.1, 1.6), (0.5, 0.8, 1.3, 2.0), (3,)),
        *itertools.product((0.75,), (0.8, 1.3), (1, 5)),
    ]:
        n_segments = round(height * width / (13 * root * spacing) ** 2)
        yield Slic(min(max(1, n_segments), height * width), _round(0.3 * root * colour), blur)
    for scale, size, blur in [
        *itertools.product((5, 15, 30, 60), (0.15, 0.4, 1), (3,)),
        *itertools.product((15, 30), (0.4,), (1, 5)),
    ]:
        yield Felzenszwalb(float(scale), max(1, round(least * size)), blur)
    for kernel, distance, ratio, blur in [
        *itertools.product((1.5, 2.5), (3, 5, 9), (1, 0.4), (3,)),
        (1.5, 3, 1, 1), (2.5, 5, 0.4, 1), (1.5, 5, 0.4, 5),
    ]:  # fmt: skip
        yield Quickshift(kernel, float(distance), _round(min(1, 0.04 * blur / sigma) * ratio), blur)
    for noise, segments, colour in ((1, 1, 1), (0.65, 1, 1), (0.4, 1, 1), (1.5, 1, 1), (1, 1, 0.7), (1, 2, 1)):
        soft = Soft.tuned_for(noise * sigma, shape)
        n_segments = max(1, round(soft.of.n_segments * segments))
        slic = dataclasses.replace(soft.of, n_segments=n_segments, compactness=_round(soft.of.compactness * colour))
        yield Shifts(dataclasses.replace(soft, of=slic), 4)


def rules(sigma: float, shape: tuple[int, int, int]) -> Iterator[Partition | None]:
    """Yield the partitions by the former and by the present rules, and the baselines."""
    yield from (resolve_by(rule, parse_partition(text), sigma, shape) for text in HARD for rule in (FORMER, PRESENT))
    for text in ("slic/soft/shifts:k=4", "blur:size=3", "gauss"):
        yield resolve_by(PRESENT, parse_partition(text), sigma, shape)


class Measurement:
    """A network with images and labels, on which votes for the correct label are counted."""

    def __init__(self, name: str, model: str, data: str, split: str | None, classes: str | None, images: int) -> None:
        subject = load_subject(model, data, split=split, classes=classes)
        chosen = subject.images[:: max(1, len(subject.images) // images)][:images]
        self.name, self.indices = name, chosen
        examples = [subject.data[i] for i in chosen]
        self.images = [example.image for example in examples]
        batch = torch.stack(self.images[:4])
        self.network = choose_engine(subject.model, batch, engine="onnxruntime", samples=10**6).model.module.eval()
        with torch.inference_mode():
            clean = [int(self.network(image[None]).argmax()) for image in self.images]
        self.labels = [own if e.label is None else e.label for e, own in zip(examples, clean, strict=True)]
        self.groups = _group_labels(self.labels) if subject.num_classes > GROUP else None

    def count(self, noise: Gaussian, partition: Partition | None, samples: int) -> dict[str, Any]:
        """Count the votes for the correct label of each image, among all labels and among ten of them."""
        votes, of_ten, segments, winners = [], [], 0, []
        for index, image, label in zip(self.indices, self.images, self.labels, strict=True):
            scores, count = self._score(image, noise, partition, samples, index)
            winner = scores.argmax(1)
            votes.append(int((winner == label).sum()))
            winners.append(winner)
            segments += count
            if self.groups is not None:
                group = next(g for g in self.groups if label in g)
                of_ten.append(int((scores[:, group].argmax(1) == group.index(label)).sum()))
        top = int(torch.cat(winners).bincount().max()) / (samples * len(votes))
        mean_segments = segments / (samples * len(votes))
        return {"votes": votes, "votes_of_ten": of_ten, "top_label": top, "segments": mean_segments}

    def _score(
        self, image: torch.Tensor, noise: Gaussian, partition: Partition | None, samples: int, index: int
    ) -> tuple[torch.Tensor, int]:
        """Return the scores of noisy copies, and the sum of their numbers of segments."""
        rng, scores, segments = keyed_rng("cpu", SEED, index, TUNE, 0), [], 0
        noisy = image + noise.sample((samples, *image.shape), rng)
        with torch.inference_mode():
            for batch in noisy.split(BATCH):
                inputs, count = (batch, None) if partition is None else partition.run(batch)
                scores.append(self.network(inputs))
                segments += 0 if count is None else int(count.sum())
        return torch.cat(scores), segments


def measure(arguments: argparse.Namespace) -> None:
    """Append the votes of every partition at every sigma to the file."""
    done = {(v["network"], v["sigma"], v["partition"]) for v in _read(arguments.votes)}
    measurement = Measurement(
        arguments.name, arguments.model, arguments.data, arguments.split, arguments.classes, arguments.images
    )
    propose = scan_options if arguments.stage == "scan" else rules
    shape = tuple(measurement.images[0].shape)
    for sigma in arguments.sigmas:
        for partition in dict.fromkeys((None, *propose(sigma, shape))):
            key = {"network": arguments.name, "sigma": sigma, "partition": str(partition or "none")}
            if tuple(key.values()) in done:
                continue
            result = measurement.count(Gaussian(sigma), partition, arguments.samples)
            with arguments.votes.open("a") as file:
                file.write(json.dumps({**key, "shape": shape, "samples": arguments.samples, **result}) + "\n")
            print(*key.values(), f"{estimate_radii(result['votes'], arguments.samples, sigma).mean():.4f}", flush=True)


def estimate_radii(votes: Sequence[int], samples: int, sigma: float) -> np.ndarray:
    """Estimate the radius of each image from its share of votes, 0 where the correct label has no majority."""
    noise = Gaussian(sigma)
    return np.array([noise.radius(min((vote + 0.5) / (samples + 1), P_MAX), 1) for vote in votes])


def write_table(arguments: argparse.Namespace) -> None:
    """Write the average radius of each partition, and its paired difference from plain smoothing."""
    entries = _read(arguments.votes)
    lines = []
    for suffix, key in (("", "votes"), (", ten labels", "votes_of_ten")):
        plain = {(e["network"], e["sigma"]): e for e in entries if e["partition"] == "none" and e[key]}
        for entry in (e for e in entries if e[key]):
            radii, baseline = (
                estimate_radii(e[key], e["samples"], e["sigma"])
                for e in (entry, plain[entry["network"], entry["sigma"]])
            )
            gain = radii - baseline
            lines.append((
                entry["network"] + suffix, "x".join(map(str, entry["shape"])), entry["sigma"], entry["partition"],
                len(radii), entry["samples"],
                f"{radii.mean():.4f}", f"{gain.mean():.4f}", f"{mean_error(gain):.4f}", f"{entry['top_label']:.2f}",
                f"{entry['segments']:.0f}",
            ))  # fmt: skip
    with arguments.table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(lines, key=lambda line: line[:4]))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _group_labels(labels: Sequence[int]) -> list[list[int]]:
    """Split the labels that occur into groups of ten. The last group is filled from the one before it."""
    present = sorted(set(labels))
    return [present[i : i + GROUP] for i in range(0, len(present) - GROUP + 1, GROUP)] + [present[-GROUP:]]


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    for stage in ("scan", "check"):
        command = stages.add_parser(stage)
        command.add_argument("votes", type=Path)
        for word in ("--name", "--model", "--data"):
            command.add_argument(word, required=True)
        command.add_argument("--split")
        command.add_argument("--classes")
        command.add_argument("--images", type=int, default=64)
        command.add_argument("--samples", type=int, default=32)
        command.add_argument("--sigmas", type=float, nargs="+", default=[0.06, 0.12, 0.25, 0.5])
        command.set_defaults(run=measure)
    table = stages.add_parser("table")
    table.add_argument("votes", type=Path)
    table.add_argument("table", type=Path)
    table.set_defaults(run=write_table)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    _threads.set_threads(1)
    arguments.run(arguments)


if __name__ == "__main__":
    main()
