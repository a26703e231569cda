"""Carry out a plan: train its models, choose partitions, certify its cells, and draw its experiments."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pprs._support.files import atomic_write
from pprs.adaptation import BUDGET, adapt
from pprs.adaptation.images import choose_images
from pprs.certify.dataset import certify_dataset
from pprs.data import ImageSet, Selection, open_dataset
from pprs.dither.perturbation import DitherPerturbation
from pprs.dither.thresholds import Dither
from pprs.errors import ConfigurationError, PprsError, suggest
from pprs.model import load_model
from pprs.model.overlay import join_adapted
from pprs.noise import Gaussian, digest_image, noise_of
from pprs.partition import parse_partition
from pprs.progress import BarsOnly, Progress, as_progress, duration
from pprs.reproduction.draw import ExperimentResult, draw_experiment, render_page, tabulate
from pprs.reproduction.former_rules import resolve_by
from pprs.reproduction.groups import digest_texts, join_runs, label_groups
from pprs.reproduction.plan import Cell, Experiment, ModelSpec, ReproductionPlan, noise_at
from pprs.reproduction.read import read_plan
from pprs.reproduction.results import Entry, Results
from pprs.runners import describe_failures
from pprs.runs import Run, RunFrame
from pprs.runs.subject import load_subject
from pprs.smoothing.sampling import Sampling
from pprs.training.trainer import Recipe, accuracy, train_and_score
from pprs.tuning import Candidate, MeasurementCache, Search

ALL = "all"
MOST_LEFT_OUT = 0.01  # of the images to adapt with, because they are certified


def reproduce(
    experiment: str | Sequence[str] = ALL,
    *,
    out: str | Path = "reproduction",
    data_root: str | Path | None = None,
    data: Sequence[str] | None = None,
    quick: bool = False,
    plan: str | Path | ReproductionPlan | None = None,
    draw_only: bool = False,
    progress: bool | Progress = True,
) -> list[ExperimentResult]:
    """Rebuild the paper's tables and figures: train, certify what is missing, and draw.

    The same call resumes an interrupted one.

    Args:
        experiment: One or several of the plan's experiments, or "all".
        out: Folder for models, runs, rows, tables and figures.
        data_root: Folder that holds mnist, fashion-mnist, cifar10 and imagenet-sample. By default they come from the
            hub.
        data: Restrict the experiments to these data sets of the plan.
        quick: Use the small plan on the built-in digits, which takes minutes.
        plan: Another plan, or the path of its file.
        draw_only: Draw from the rows that are in `out`. This needs no classifier.
        progress: Whether to show progress, or an object to report it to.

    Returns:
        The results of the experiments, each on one data set.

    Raises:
        PprsError: Some experiments failed. All others are finished and stored by then.
    """
    if not isinstance(plan, ReproductionPlan):
        plan = read_plan(None if plan is None else Path(plan), quick=quick)
    selected = _select(plan, [experiment] if isinstance(experiment, str) else experiment, data)
    if data_root is not None and not Path(data_root).is_dir():
        raise ConfigurationError(f"`data_root` {data_root} is not a folder", parameter="data_root")
    reporter, start = as_progress(progress), time.monotonic()
    reproduction = Reproduction(plan, Path(out), data_root, draw_only=draw_only, progress=reporter)
    results, problems = reproduction.draw(selected)
    if results:
        path = Path(out) / "README.md"
        with atomic_write(path) as part:
            content = render_page(plan, reproduction.with_earlier(results), reproduction.results.models())
            part.write_text(content, encoding="utf-8")
        elapsed = duration(time.monotonic() - start)
        reporter.message(f"{len(results)} experiments drawn in {elapsed}: {path}")
    if problems:
        raise PprsError(
            f"{len(problems)} of {len(selected)} experiments failed:\n  " + "\n  ".join(problems) + "\nFinished "
            "work is kept: fix the cause and repeat the command, or select other data sets with `data`."
        )
    return results


def _select(
    plan: ReproductionPlan, experiments: Sequence[str], data: Sequence[str] | None
) -> list[tuple[Experiment, str]]:
    """The requested pairs of experiment and data set."""
    names = list(plan.experiments) if ALL in experiments else list(experiments)
    for name in names:
        if name not in plan.experiments:
            raise ConfigurationError(
                f'unknown experiment "{name}". {suggest(name, [*plan.experiments, ALL])}', parameter="experiment"
            )
    for name in data or ():
        if name not in plan.data:
            raise ConfigurationError(
                f'`data`: the plan has no data set "{name}". {suggest(name, plan.data)}', parameter="data"
            )
    selected = [(plan.experiments[n], d) for n in names for d in plan.experiments[n].data if data is None or d in data]
    if not selected:
        available = ", ".join(dict.fromkeys(d for n in names for d in plan.experiments[n].data))
        raise ConfigurationError(
            f"`data` {', '.join(data or ())}: {', '.join(experiments)} is defined for {available}", parameter="data"
        )
    return selected


class StaleRows(PprsError):
    """A network was trained again, so rows certified with the former one have to be certified again."""


class Reproduction:
    """A plan and the folder in which it is carried out."""

    def __init__(
        self,
        plan: ReproductionPlan,
        out: Path,
        data_root: str | Path | None = None,
        *,
        draw_only: bool = False,
        progress: bool | Progress = False,
    ) -> None:
        self.plan, self.out, self.draw_only = plan, out, draw_only
        self.results = Results(out)
        self._root, self._progress = None if data_root is None else Path(data_root), as_progress(progress)
        self._networks: dict[str, Entry] = {}  # the first entry that used a model, by model
        self._images: dict[str, Entry] = {}  # the first entry that used a data set, by data set

    def draw(self, selected: Sequence[tuple[Experiment, str]]) -> tuple[list[ExperimentResult], list[str]]:
        """Draw each experiment on its data set. One that fails does not stop the others.

        Returns:
            The results, and one message for each experiment that failed.
        """
        results, problems = [], []
        for i, (experiment, data) in enumerate(selected, 1):
            self._progress.message(f"[{i}/{len(selected)}] {experiment.name}, {data}")
            try:
                images = self._gallery_images(data) if experiment.draw == "gallery" else None
                try:
                    results.append(draw_experiment(self.plan, experiment, data, self.rows, self.out, images))
                except StaleRows:
                    self._progress.message("  a network was trained again: certifying its earlier rows again")
                    results.append(draw_experiment(self.plan, experiment, data, self.rows, self.out, images))
            except PprsError as error:
                problems.append(f"{experiment.name}, {data}: {error}")
                self._progress.message(f"  failed: {error}")
        return results, problems

    def with_earlier(self, results: Sequence[ExperimentResult]) -> list[ExperimentResult]:
        """These results and those of earlier calls whose rows are still valid, in the plan's order."""
        current = {result.name: result for result in results}
        earlier = Reproduction(self.plan, self.out, draw_only=True)
        ordered = []
        for experiment in self.plan.experiments.values():
            for data in experiment.data:
                name = f"{experiment.name}-{data}"
                if name in current:
                    ordered.append(current[name])
                elif (self.out / "tables" / f"{name}.md").is_file():
                    with contextlib.suppress(PprsError):
                        ordered.append(tabulate(self.plan, experiment, data, earlier.rows)[0])
        return ordered

    def _gallery_images(self, data: str) -> ImageSet | None:
        """The images of a gallery. If they are missing when only drawing, the gallery's figure is left unchanged."""
        try:
            return self.network_inputs(data)
        except PprsError as error:
            if not self.draw_only:
                raise
            self._progress.message(f"  its figure is left unchanged: {error}")
            return None

    def rows(self, cell: Cell) -> RunFrame:
        """The rows of a cell, which is certified first if necessary."""
        entry = self._certified(cell)
        first = self._networks.setdefault(cell.model, entry)
        if first.network != entry.network and self._network(cell.model):
            self._networks.clear()
            raise StaleRows(f"the network {cell.model} was trained again: repeat the command")
        if first.network != entry.network:
            raise self._not_comparable(entry, first, f"networks called {cell.model}")
        first = self._images.setdefault(cell.data, entry)
        if first.images != entry.images:
            raise self._not_comparable(entry, first, f"images called {cell.data}")
        return self.results.frame(entry)

    def _not_comparable(self, entry: Entry, other: Entry, what: str) -> PprsError:
        return PprsError(
            f"the rows of {entry.cell.name} and {other.cell.name} were certified with different {what}, so they cannot "
            f"be compared. Give another `out`. Or remove {self.out / entry.cell.data}.parquet and the run folder of "
            f"the older one in {self.out / 'runs'}, and repeat the command."
        )

    def _certified(self, cell: Cell) -> Entry:
        key, network = self.plan.cell_key(cell), self._network(cell.model)
        entry = self.results.find(cell, key)
        if entry is not None and network in ("", entry.network):
            return entry
        if self.draw_only:
            raise PprsError(
                f"{self.out} has no rows of {cell.name}, or only those of another plan or network. Leave out "
                "`draw_only` to certify what is missing.",
                parameter="draw_only",
            )
        start = time.monotonic()
        rows, network, images = join_runs(self._certify(cell, key), self._network(cell.model))
        entry = self.results.add(cell, key, rows, network=network, images=images)
        self._progress.message(f"  {cell.name}: {duration(time.monotonic() - start)}")
        return entry

    def source(self, text: str) -> str:
        """Data as for `open_dataset`: a path below the data root if it exists there."""
        if self._root is not None and (self._root / text).exists():
            return str(self._root / text)
        return text

    def images(self, data: str) -> ImageSet:
        """The images of a data set of the plan."""
        spec = self.plan.data[data]
        return open_dataset(self.source(spec.source), split=spec.split, classes=self._classes(data))

    def _classes(self, data: str) -> Path | None:
        text = self.plan.data[data].classes
        return Path(self.source(text)) if text else None

    def network_inputs(self, data: str) -> ImageSet:
        """The images as the model with the data set's name receives them, cropped and scaled to its input size."""
        model = self.plan.models[data]
        if model.source is None:
            return self.images(data)
        return load_subject(model.source, self.images(data)).data

    def model(self, name: str) -> str:
        """A model as for `load_model`, which is trained or adapted first if necessary."""
        spec = self.plan.models[name]
        if spec.source is not None:
            return spec.source
        path, key = self.out / "models" / f"{name}.safetensors", self.plan.model_key(name)
        text = str(path) if spec.of is None else join_adapted(self.model(spec.of), path)
        if path.is_file() and self.results.models().get(name, {}).get("key") == key:
            if (recorded := self._network(name)) and load_model(text).digest() != recorded:
                raise PprsError(f"{path} is not the network that was made in this folder. Remove it to make it again.")
            return text
        accuracy, images = self._train(name, path) if spec.of is None else self._adapt(name, path)
        digest = load_model(text).digest()
        values = {"clean_accuracy": accuracy, "digest": digest, "images": images, "key": key}
        self.results.add_model(name, values)
        return text

    def _train(self, name: str, path: Path) -> tuple[float, int]:
        """Train a model, and return its accuracy on the clean test images and their number."""
        spec = self.plan.models[name]
        if spec.data is None:
            raise PprsError(f"model {name} has neither a source nor data to train on")
        source = self.source(self.plan.data[spec.data].source)
        classes = self._classes(spec.data)
        training = open_dataset(source, split="train", prefer="train", classes=classes)
        self._check_split(training, spec.data, f"training {name}", "")
        shape = training[0].image.shape
        colour = len(shape) == 3 and shape[0] == 3
        seed = self.plan.seed if spec.seed is None else spec.seed
        recipe = Recipe(spec.arch, spec.width, spec.epochs, flip=colour, shift=spec.shift, seed=seed)
        recipe = recipe if spec.batch_size is None else dataclasses.replace(recipe, batch_size=spec.batch_size)
        behind: dict[str, Any] = {}
        if spec.noise is not None:
            behind = self._behind(spec, tuple(training[0].image.shape))
            if isinstance(noise := behind["noise"], Dither):
                behind = {"noise": DitherPerturbation.of(noise, spec.partition)}
        self._progress.message(f"training {name}")
        return train_and_score(training, recipe, source, path, classes=classes, progress=self._progress, **behind)

    def _adapt(self, name: str, path: Path) -> tuple[float, int]:
        """Adapt a model with unlabelled images, and return its accuracy on the clean images that are certified."""
        spec = self.plan.models[name]
        base, data = str(spec.of), self.plan.data_of(name)
        if spec.noise is None or spec.adapt is None:
            raise PprsError(f"model {name} needs the noise and the method of its adaptation")
        photos = open_dataset(self.source(spec.photos or self.plan.data[data].source), split="train", prefer="train")
        self._check_split(photos, data, f"adapting {name}", " Or name other images as `photos`.")
        self._progress.message(f"adapting {name}")
        path.unlink(missing_ok=True)  # made by another plan
        adapt(
            self.model(base), photos, **self._behind(spec, self._input_shape(base, data)), out=path,
            method=spec.adapt, budget=spec.budget or BUDGET, images=self._choose_photos(name, photos),
            seed=self.plan.seed, progress=self._progress,
        )  # fmt: skip
        subject = load_subject(join_adapted(self.model(base), path), self.images(data))
        return accuracy(subject.model.module, subject.data), len(subject.data)

    def _behind(self, spec: ModelSpec, shape: tuple[int, ...]) -> dict[str, Any]:
        """Return the noise of a model, or its thresholds, and the partition, for images of this shape."""
        noise = noise_at(spec.kind or Gaussian.name, float(spec.noise or 0))
        if isinstance(noise, Dither):
            return {"noise": noise, "partition": spec.partition}
        partition = resolve_by(self.plan.rules, parse_partition(spec.partition), noise.sigma, shape)
        return {"noise": noise, "partition": partition}

    def _choose_photos(self, name: str, photos: ImageSet) -> list[int]:
        """The images to adapt a model with, none of which is certified.

        Data sets have a few images in both of their splits. These are left out.
        """
        spec, data = self.plan.models[name], self.plan.data_of(name)
        subject = load_subject(self.model(str(spec.of)), self.images(data))
        certified = {digest_image(subject.data[i].image) for i in subject.images}
        chosen = choose_images(photos, Selection(limit=spec.images), self.plan.seed)
        others = [i for i in chosen if digest_image(subject.model.prepare(photos.image_of(i))) not in certified]
        left_out = len(chosen) - len(others)
        if left_out > MOST_LEFT_OUT * len(chosen):
            raise PprsError(
                f"{left_out} of the {len(chosen)} images to adapt {name} with are among those of {data}, so certifying "
                "them would bias the results. Name other images as `photos`."
            )
        if left_out:
            self._progress.message(f"  leaving out {left_out} images that are among those of {data}")
        return others

    def _certify(self, cell: Cell, key: str) -> list[Run]:
        """One run, or one for each group of labels."""
        data, plan = self.plan.data[cell.data], self.plan
        model, runs = self.model(cell.model), []
        how: dict[str, Any] = {"partition": self._partition(cell)}
        if not cell.is_counted:
            partition = parse_partition(self._partition(cell))
            shape = () if partition is None else self._input_shape(cell.model, cell.data)
            how = {
                "partition": resolve_by(plan.rules, partition, cell.sigma, shape), "seed": plan.seed,
                "sampling": Sampling(data.n0 or plan.n0, data.n or plan.n, plan.alpha, stop=cell.stop),
                "arithmetic": "real",
            }  # fmt: skip
        for i, (labels, count) in enumerate(self._groups(cell.data, cell.model)):
            run = certify_dataset(
                model, self.source(data.source), noise=noise_at(cell.noise, cell.sigma),
                images=Selection(stride=data.stride, limit=count), out=self._folder(cell, key) / str(i),
                split=data.split, classes=self._classes(cell.data), labels=labels,
                engine=plan.models[cell.model].engine, progress=BarsOnly(self._progress), **how,
            )  # fmt: skip
            if failures := run.failures():
                raise PprsError(
                    f"images of the run {run.path} failed, so it cannot be drawn. {describe_failures(failures)}"
                )
            runs.append(run)
        return runs

    def _input_shape(self, model: str, data: str) -> tuple[int, ...]:
        """The shape of the images that a network receives."""
        return load_model(self.model(model)).input_shape or tuple(self.images(data)[0].image.shape)

    def _network(self, model: str) -> str:
        """The digest of a model that this plan trained in this folder, or an empty text."""
        known = self.results.models().get(model, {})
        return str(known.get("digest", "")) if known.get("key") == self.plan.model_key(model) else ""

    def _folder(self, cell: Cell, key: str) -> Path:
        """Where a cell is certified. Each network has its own folder, so that each resumes its own runs."""
        network = self._network(cell.model)[:6]
        return self.out / "runs" / (f"{cell.name}-{key[:6]}" + (f"-{network}" if network else ""))

    def _groups(self, data: str, model: str) -> list[tuple[str | None, int]]:
        """The groups of labels to choose among (None: all labels), and the number of images of each group."""
        spec = self.plan.data[data]
        if spec.labels_at_a_time is None:
            return [(spec.labels, spec.images)]
        images = self.images(data)
        indices = Selection(stride=spec.stride, limit=spec.images).of(len(images))
        labels = [label for i in indices if (label := images.label_of(i)) is not None]
        if len(labels) < len(indices):
            raise PprsError(f"{data} has images without a label, which `labels_at_a_time` requires")
        groups = label_groups(labels, spec.labels_at_a_time)
        if not groups:
            raise PprsError(
                f"the {len(indices)} images of {data} have fewer than two labels to choose among. If the images are "
                "sorted by class, give a larger stride."
            )
        # Class numbers agree if the model was trained on the data or the plan names the model's classes. Otherwise the
        # classes are matched by name.
        names = images.class_names if self.plan.models[model].source and not spec.classes else None
        words = [str(i) if names is None else names[i] for i in range(max(labels) + 1)]
        if any("," in word for word in words):
            raise PprsError(
                f"class names of {data} contain commas. List the model's classes, in order, in a file, and name it as "
                "`classes`."
            )
        return [(",".join(words[i] for i in group), sum(label in group for label in labels)) for group in groups]

    def _check_split(self, training: ImageSet, data: str, purpose: str, remedy: str) -> None:
        """Refuse to train or to choose on the images that are certified."""
        if training.fingerprint() == self.images(data).fingerprint():
            raise PprsError(
                f"{data} has no training split, and {purpose} on the images that are certified would bias the results. "
                f"Use a folder with the subfolders train and test.{remedy}"
            )

    def _partition(self, cell: Cell) -> str:
        """The cell's partition, or the best of several on training images if the method asks for that."""
        method = self.plan.methods.get(cell.method)
        spec = self.plan.data[cell.data]
        if method is None or not method.best_of or not spec.training:
            return cell.partition
        key = self.plan.cell_key(dataclasses.replace(cell, stop=None))
        settings = {"key": digest_texts([key, self._network(cell.model)]), "samples": self.plan.choose_samples}
        name = f"{cell.data}_{cell.model}_{cell.noise}-{cell.sigma:g}_{cell.method}-{str(settings['key'])[:6]}.jsonl"
        path = self.out / "chosen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cache = MeasurementCache(path, settings)
        chosen = str(cache.get_or_compute("best", lambda: self._best_partition(cell, method.best_of, cache)))
        self._progress.message(f"  {method.label} for {cell.data} at sigma {cell.sigma:g}: {chosen}")
        return chosen

    def _best_partition(self, cell: Cell, candidates: Sequence[str], cache: MeasurementCache) -> str:
        """The candidate with the largest average radius estimated from votes on training images."""
        spec, count, samples = self.plan.data[cell.data], self.plan.choose_images, self.plan.choose_samples
        source, classes = self.source(spec.source), self._classes(cell.data)
        remedy = f" Or set `training = false` under [data.{cell.data}]."
        training = open_dataset(source, split="train", classes=classes)
        self._check_split(training, cell.data, "choosing a partition", remedy)
        subject = load_subject(self.model(cell.model), training, labels=spec.labels)
        images = subject.images[:: max(1, len(subject.images) // count)][:count]
        search = Search(
            subject.model.module, subject.num_classes, noise_of(cell.noise, cell.sigma), subject.data, cache,
            seed=self.plan.seed, device="cpu",
        )  # fmt: skip

        def estimated_radius(text: str) -> float:
            partition = resolve_by(
                self.plan.rules, parse_partition(text), cell.sigma, tuple(subject.sample.image.shape)
            )
            return float(search.values(Candidate(partition), images, samples)[0].mean())

        return max(candidates, key=estimated_radius)
