"""What `pprs demo` shows: a network certified in several ways, and a report that compares them."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, final

import typer

from pprs.adaptation import adapt
from pprs.certify.dataset import certify_dataset
from pprs.cli import load_command
from pprs.cli.compilation import compile_ahead
from pprs.cli.console import RunTotals, console, exit_if_failed, print_summary, progress, say
from pprs.cli.report import print_report
from pprs.cli.segment import ABSTAINED
from pprs.data import Selection, fair_order
from pprs.inputs.domain import domain_of_any
from pprs.label_sets import LabelSets, SetRequest, attack_sets, compare_sets, list_notes, state_promise
from pprs.label_sets.attack import AttackOptions
from pprs.label_sets.page import write_set_report
from pprs.model.builtin import COMMANDS
from pprs.noise import Gaussian
from pprs.partition import parse_partition
from pprs.patches import adapt_to_masks, certify_patches
from pprs.report import write_report
from pprs.runs import Run
from pprs.runs.subject import load_subject
from pprs.segmentation import SegmentationSampling
from pprs.segmentation.run import segment_dataset
from pprs.smoothing.sampling import Sampling

DIGITS, SCENES = "builtin:mnist5k", "builtin:scenes"
SIGMA = 0.25
ADAPTED = "adapted"


class Demo(ABC):
    """A network, shown on built-in data."""

    network: ClassVar[str] = "digits"  # the built-in network
    page: ClassVar[str] = "report.html"

    @final
    def show(self, out: Path, *, train: bool) -> None:
        """Certify the built-in network, or one that is trained by the same command, and write a report."""
        folder = out / "trained" if train else out
        folder.mkdir(parents=True, exist_ok=True)
        model = self._train(folder) if train else f"builtin:{self.network}"
        page = folder / self.page
        self.present(model, folder, page, adapting=train)
        say(f"\nThe report: {page.resolve()}")

    def _train(self, out: Path) -> str:
        file = out / f"{self.network}.safetensors"
        if not file.exists():
            _, command, *arguments = shlex.split(COMMANDS[self.network])
            # The last option wins. All threads are used, so rounding differs from the built-in network's.
            threads = arguments.index("--threads")
            arguments = [*arguments[:threads], *arguments[threads + 2 :], "--out", str(file)]
            code = load_command(command).main(arguments, standalone_mode=False)
            if code:
                raise typer.Exit(code)
        return str(file)

    @abstractmethod
    def present(self, model: str, out: Path, page: Path, *, adapting: bool) -> None:
        """Show what the model certifies, and write the report."""


class RunsDemo(Demo):
    """A network certified in several ways, each of which is a run in a folder of its own."""

    ways: ClassVar[Mapping[str, str]]  # folder -> partition or fill
    adapted_way: ClassVar[str | None] = None  # the one that the network is adapted to, if it is

    def present(self, model: str, out: Path, page: Path, *, adapting: bool) -> None:
        runs = [self.certify(model, way, out / name, None) for name, way in self.ways.items()]
        if adapting and self.adapted_way is not None:
            overlay, way = out / f"{ADAPTED}.safetensors", self.ways[self.adapted_way]
            self.adapt(model, way, overlay)
            runs.append(self.certify(model, way, out / ADAPTED, overlay))
        print_report(write_report(runs, page))

    @abstractmethod
    def certify(self, model: str, way: str, folder: Path, adapted: Path | None) -> Run:
        """Certify the model in one way."""

    def adapt(self, model: str, way: str, out: Path) -> None:
        """Adapt the model to one way."""


class CertifyDemo(RunsDemo):
    """Radii of digits, with and without superpixels."""

    ways: ClassVar[Mapping[str, str]] = {
        "rs": "none",
        "blur": "blur:size=3",
        "slic": "slic:n_segments=50,compactness=0.15,blur=3",
        "soft": "auto",
    }
    adapted_way = "slic"
    limit, n, budget, adapted_with = 100, 500, "1m", 1000

    def present(self, model: str, out: Path, page: Path, *, adapting: bool) -> None:
        compile_ahead(channels=1)  # while the first way needs no kernels of partitions
        super().present(model, out, page, adapting=adapting)

    def certify(self, model: str, way: str, folder: Path, adapted: Path | None) -> Run:
        def run(images: range) -> Run:
            return certify_dataset(
                model, DIGITS, noise=Gaussian(SIGMA), partition=way, sampling=Sampling(n=self.n), images=images,
                out=folder, progress=progress, adapted=adapted,
            )  # fmt: skip

        first = run(range(1))
        print_summary(RunTotals.of(first), first.settings, None)
        whole = run(range(self.limit))
        summary = RunTotals.of(whole)
        print_summary(summary, whole.settings, str(folder))
        exit_if_failed(summary.failures, domain_of_any(summary.shapes))
        return whole

    def adapt(self, model: str, way: str, out: Path) -> None:
        images = Selection(limit=self.adapted_with)
        adapt(
            model, DIGITS, noise=Gaussian(SIGMA), partition=way, out=out, budget=self.budget, images=images,
            progress=progress,
        )  # fmt: skip


class PatchesDemo(RunsDemo):
    """Certificates of digits against patches, with every fill."""

    page = "patches.html"
    ways: ClassVar[Mapping[str, str]] = {
        f"patch-{fill}": fill for fill in ("constant", "mean", "diffusion", "superpixels")
    }
    adapted_way = "patch-diffusion"
    patch, limit, budget, adapted_with = 2, 40, "45s", 4000

    def certify(self, model: str, way: str, folder: Path, adapted: Path | None) -> Run:
        return certify_patches(
            model, DIGITS, patch=self.patch, fill=way, images=range(self.limit), out=folder, progress=progress,
            adapted=adapted,
        )  # fmt: skip

    def adapt(self, model: str, way: str, out: Path) -> None:
        images = Selection(limit=self.adapted_with)
        adapt_to_masks(
            model, DIGITS, patch=self.patch, fill=way, out=out, budget=self.budget, images=images, progress=progress
        )


class SegmentDemo(RunsDemo):
    """Label maps of scenes with several digits, with and without partitions."""

    network, page = "scenes", "segmentation.html"
    ways: ClassVar[Mapping[str, str]] = {
        "segment-rs": "none",
        "segment-blur": "blur:size=3",
        "segment-soft": "slic/soft/shifts:k=4",
    }
    limit = 12

    def certify(self, model: str, way: str, folder: Path, adapted: Path | None) -> Run:
        run = segment_dataset(
            model, SCENES, noise=Gaussian(SIGMA), partition=way, sampling=SegmentationSampling(),
            images=range(self.limit), out=folder, progress=progress,
        )  # fmt: skip
        exit_if_failed(run.failures(), outcome=ABSTAINED)
        return run


class SetsDemo(Demo):
    """Label sets of digits, calibrated with half of them, and tried and attacked on the other half."""

    page = "sets.html"
    ways: ClassVar[Mapping[str, str]] = {"plain": "none", "blur": "blur:size=3", "soft": "slic/soft/shifts:k=4"}
    radius, alpha, calibration, attacked = 0.25, 0.1, 500, 10

    def present(self, model: str, out: Path, page: Path, *, adapting: bool) -> None:
        subject = load_subject(model, DIGITS)
        chosen = replace(subject, images=sorted(fair_order(subject.images, 0)[: self.calibration]))
        evaluations = []
        for name, way in self.ways.items():
            request = SetRequest(Gaussian(SIGMA), parse_partition(way), self.radius, self.alpha)
            sets = LabelSets.of_subject(chosen, request, progress=progress.quiet())
            sets.save(out / f"sets-{name}.json")
            evaluation = sets.evaluate_subject(subject, progress=progress.quiet())
            attacked = attack_sets(sets, subject, AttackOptions(self.attacked, 10), progress=progress.quiet())
            evaluations.append(replace(evaluation, attacked=attacked))
        say(f"what is promised: {state_promise(sets.settings)}.")
        console.print(compare_sets(evaluations).to_rich())
        for note in list_notes(evaluations):
            say(note)
        write_set_report(evaluations, subject, page)


__all__ = ["CertifyDemo", "Demo", "PatchesDemo", "RunsDemo", "SegmentDemo", "SetsDemo"]
