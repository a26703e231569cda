"""Makes what a plan's experiments need: trains its models, chooses among partitions, certifies its cells."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from pprs._files import atomic_write
from pprs.data import ImageSet, Selection, open_dataset
from pprs.dataset import certify_dataset, describe_failures
from pprs.errors import ConfigurationError, PprsError, suggest
from pprs.model import load_model
from pprs.noise import Gaussian, noise_of
from pprs.partition import parse_partition
from pprs.progress import Progress, as_progress, duration
from pprs.reproduction.draw import Drawn, draw, page, read_models, tell
from pprs.reproduction.plan import Cell, Experiment, Plan
from pprs.reproduction.read import read_plan
from pprs.runs import Row, Run
from pprs.runs.export import to_arrow, write_parquet
from pprs.sampling import Sampling
from pprs.task import load_task
from pprs.train import Recipe, train_and_score
from pprs.tuning import MeasurementCache, Search

ALL = "all"
# In a parquet file: what its rows were made from, by the plan, and the network and the pictures themselves.
KEY, NETWORK, PICTURES = b"pprs", b"pprs.network", b"pprs.pictures"


def reproduce(
    experiment: str | Sequence[str] = ALL,
    *,
    out: str | Path = "reproduction",
    data_root: str | Path | None = None,
    data: Sequence[str] | None = None,
    quick: bool = False,
    plan: str | Path | Plan | None = None,
    draw_only: bool = False,
    progress: bool | Progress = True,
) -> list[Drawn]:
    """Rebuild the paper's tables and figures: train, certify what is missing, draw. The same call resumes.

    experiment: one or several of the plan's, or "all". out: a folder for models, runs, rows, tables and figures.
    data_root: holds mnist, fashion-mnist, cifar10 and imagenet-sample; otherwise they come from the hub. data: only
    these data sets of the plan. quick: on the built-in digits, in minutes. plan: another plan, or its file. draw_only:
    draw again from the rows in OUT/rows; no classifier is needed.
    """
    chosen = plan if isinstance(plan, Plan) else read_plan(None if plan is None else Path(plan), quick=quick)
    todo = _select(chosen, [experiment] if isinstance(experiment, str) else experiment, data)
    if data_root is not None and not Path(data_root).is_dir():
        raise ConfigurationError(f"`data_root` {data_root} is not a folder", parameter="data_root")
    shown, began = as_progress(progress), time.monotonic()
    work = Reproduction(chosen, Path(out), data_root, draw_only=draw_only, progress=shown)
    drawn, missing = work.draw(todo)
    if drawn:
        with atomic_write(Path(out) / "README.md") as part:
            part.write_text(page(chosen, work.with_earlier(drawn), read_models(Path(out))), encoding="utf-8")
        elapsed = duration(time.monotonic() - began)
        shown.message(f"{len(drawn)} figures and tables in {elapsed}: {Path(out) / 'README.md'}")
    if missing:
        raise PprsError(
            f"{len(missing)} could not be made:\n  " + "\n  ".join(missing) + "\nWhat was finished is kept: put this "
            "right and repeat, or name the others as `data`."
        )
    return drawn


def _select(plan: Plan, experiments: Sequence[str], data: Sequence[str] | None) -> list[tuple[Experiment, str]]:
    """The pairs of experiment and data set that were asked for."""
    names = list(plan.experiments) if ALL in experiments else list(experiments)
    for name in names:
        if name not in plan.experiments:
            raise ConfigurationError(
                f'no experiment is called "{name}". {suggest(name, [*plan.experiments, ALL])}', parameter="experiment"
            )
    for name in data or ():
        if name not in plan.data:
            raise ConfigurationError(
                f'`data`: no data set of the plan is called "{name}". {suggest(name, plan.data)}', parameter="data"
            )
    todo = [(plan.experiments[n], d) for n in names for d in plan.experiments[n].data if data is None or d in data]
    if not todo:
        about = ", ".join(dict.fromkeys(d for n in names for d in plan.experiments[n].data))
        raise ConfigurationError(
            f"`data` {', '.join(data or ())}: {', '.join(experiments)} is about {about}", parameter="data"
        )
    return todo


class StaleRows(PprsError):
    """Rows of a network that no longer exists: they have to be certified again."""


class Reproduction:
    """A plan at work in a folder: models, runs, choices, and the rows of every cell that is done."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        data_root: str | Path | None = None,
        *,
        draw_only: bool = False,
        progress: bool | Progress = False,
    ) -> None:
        self.plan, self.out, self.draw_only = plan, out, draw_only
        self._root, self._progress = None if data_root is None else Path(data_root), as_progress(progress)
        self._seen: dict[tuple[bytes, str], tuple[bytes | None, Path]] = {}

    def draw(self, todo: Sequence[tuple[Experiment, str]]) -> tuple[list[Drawn], list[str]]:
        """Draw each; one that cannot be made does not stop the others."""
        drawn, missing = [], []
        for i, (experiment, data) in enumerate(todo, 1):
            self._progress.message(f"[{i}/{len(todo)}] {experiment.name}, {data}")
            try:
                pictures = self._gallery_pictures(data) if experiment.draw == "gallery" else None
                try:
                    drawn.append(draw(self.plan, experiment, data, self.rows, self.out, pictures))
                except StaleRows:
                    self._progress.message("  a network was trained again: its earlier rows are certified again")
                    drawn.append(draw(self.plan, experiment, data, self.rows, self.out, pictures))
            except PprsError as error:
                missing.append(f"{experiment.name}, {data}: {error}")
                self._progress.message(f"  not made: {error}")
        return drawn, missing

    def with_earlier(self, drawn: Sequence[Drawn]) -> list[Drawn]:
        """What was drawn now, and what earlier calls drew from rows that still hold, in the plan's order."""
        now = {d.name: d for d in drawn}
        earlier = Reproduction(self.plan, self.out, draw_only=True)
        found = []
        for experiment in self.plan.experiments.values():
            for data in experiment.data:
                name = f"{experiment.name}-{data}"
                if name in now:
                    found.append(now[name])
                elif (self.out / "tables" / f"{name}.md").is_file():
                    with contextlib.suppress(PprsError):
                        found.append(tell(self.plan, experiment, data, earlier.rows)[0])
        return found

    def _gallery_pictures(self, data: str) -> ImageSet | None:
        """What a gallery shows. If it is only to be drawn again and they are missing, its figure stays as it is."""
        try:
            return self.network_inputs(data)
        except PprsError as error:
            if not self.draw_only:
                raise
            self._progress.message(f"  its figure stays as it is: {error}")
            return None

    def rows(self, cell: Cell) -> Path:
        """The file with a cell's rows; certified now if they are not there."""
        path = self._rows(cell)
        stamp = _stamp(path)
        for what, name, word in ((NETWORK, cell.model, "network"), (PICTURES, cell.data, "pictures")):
            found, other = self._seen.setdefault((what, name), (stamp.get(what), path))
            if found != stamp.get(what):
                if what == NETWORK and self._network(name):
                    self._seen.clear()
                    raise StaleRows(f"the network {name} was trained again: repeat the command")
                raise PprsError(
                    f"{path} and {other} were made with different {word} by the name of {name}, so they cannot be "
                    "compared. Remove the older of them and repeat the command."
                )
        return path

    def _rows(self, cell: Cell) -> Path:
        path, key = self.out / "rows" / f"{cell.name}.parquet", self.plan.cell_key(cell)
        stamp, network = _stamp(path), self._network(cell.model)
        if stamp.get(KEY) == key.encode() and (not network or stamp.get(NETWORK) == network.encode()):
            return path
        if self.draw_only:
            raise PprsError(
                f"{path} is missing, or was made by another plan or network. Leave out `draw_only` to certify what is "
                "missing.",
                parameter="draw_only",
            )
        began = time.monotonic()
        runs = self._certify(cell, key)
        _join(runs, path, key, self._network(cell.model))
        self._progress.message(f"  {cell.name}: {duration(time.monotonic() - began)}")
        return path

    def source(self, text: str) -> str:
        """Data as for `open_dataset`: a path below the root where it is there."""
        if self._root is not None and (self._root / text).exists():
            return str(self._root / text)
        return text

    def pictures(self, data: str) -> ImageSet:
        spec = self.plan.data[data]
        return open_dataset(self.source(spec.source), split=spec.split, classes=self._classes(data))

    def _classes(self, data: str) -> Path | None:
        text = self.plan.data[data].classes
        return Path(self.source(text)) if text else None

    def network_inputs(self, data: str) -> ImageSet:
        """The pictures as the model of this name gets them: cut and scaled to its input."""
        model = self.plan.models[data]
        if model.source is None:
            return self.pictures(data)
        return load_task(model.source, self.pictures(data)).data

    def model(self, name: str) -> str:
        """A model's text, as for `load_model`; trained now if it is not there."""
        spec = self.plan.models[name]
        if spec.source is not None:
            return spec.source
        if spec.data is None:
            raise PprsError(f"model {name} has neither a source nor data to be trained on")
        path, key = self.out / "models" / f"{name}.safetensors", self.plan.model_key(name)
        if path.is_file() and read_models(self.out).get(name, {}).get("key") == key:
            if (recorded := self._network(name)) and load_model(str(path)).digest() != recorded:
                raise PprsError(f"{path} is not the network that was trained here. Remove it to train it again.")
            return str(path)
        source = self.source(self.plan.data[spec.data].source)
        classes = self._classes(spec.data)
        pictures = open_dataset(source, split="train", prefer="train", classes=classes)
        self._check_split(pictures, spec.data, f"train {name} on", "")
        colour = pictures[0].image.shape[0] == 3
        recipe = Recipe(spec.arch, spec.width, spec.epochs, flip=colour, shift=spec.shift, seed=self.plan.seed)
        noise = None if spec.noise is None else Gaussian(spec.noise)
        self._progress.message(f"training {name}")
        accuracy, images = train_and_score(
            pictures, recipe, source, path, noise=noise, partition=parse_partition(spec.partition), classes=classes,
            progress=self._progress,
        )  # fmt: skip
        models = read_models(self.out)  # once more: another process may have trained others meanwhile
        digest = load_model(str(path)).digest()
        models[name] = {"clean_accuracy": accuracy, "images": images, "key": key, "digest": digest}
        with atomic_write(self.out / "rows" / "models.json") as part:
            part.write_text(json.dumps(models, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return str(path)

    def _certify(self, cell: Cell, key: str) -> list[Run]:
        """A run for each group of labels, or one."""
        data, plan = self.plan.data[cell.data], self.plan
        model, partition = self.model(cell.model), self._partition(cell)
        runs = []
        for i, (labels, count) in enumerate(self._groups(cell.data, cell.model)):
            run = certify_dataset(
                model, self.source(data.source), noise=noise_of(cell.noise, cell.sigma), partition=partition,
                sampling=Sampling(data.n0 or plan.n0, data.n or plan.n, plan.alpha, stop=cell.stop),
                images=Selection(stride=data.stride, limit=count), seed=plan.seed, out=self._folder(cell, key) / str(i),
                split=data.split, classes=self._classes(cell.data), labels=labels,
                engine=plan.models[cell.model].engine, progress=_BarsOnly(self._progress),
            )  # fmt: skip
            if failures := run.failures():
                raise PprsError(
                    f"images of the run {run.path} failed, so it is not drawn. {describe_failures(failures)}"
                )
            runs.append(run)
        return runs

    def _network(self, model: str) -> str:
        """The digest of a model that was trained here by this plan; else nothing."""
        known = read_models(self.out).get(model, {})
        return str(known.get("digest", "")) if known.get("key") == self.plan.model_key(model) else ""

    def _folder(self, cell: Cell, key: str) -> Path:
        """Where a cell is certified: another place for another network, so that each resumes its own."""
        network = self._network(cell.model)[:6]
        return self.out / "runs" / (f"{cell.name}-{key[:6]}" + (f"-{network}" if network else ""))

    def _groups(self, data: str, model: str) -> list[tuple[str | None, int]]:
        """The labels that occur, so many at a time (None: all at once), and how many of the images have them."""
        spec = self.plan.data[data]
        if spec.labels_at_a_time is None:
            return [(spec.labels, spec.images)]
        pictures = self.pictures(data)
        images = Selection(stride=spec.stride, limit=spec.images).of(len(pictures))
        labels = [label for i in images if (label := pictures.label_of(i)) is not None]
        if len(labels) < len(images):
            raise PprsError(f"{data} has images without a label: `labels_at_a_time` is for those with one")
        groups = label_groups(labels, spec.labels_at_a_time)
        if not groups:
            raise PprsError(
                f"the {len(images)} images of {data} have fewer than two labels, so there is nothing to choose among. "
                "If they are sorted by class, give a larger stride."
            )
        # Numbers mean the same to both where the model was trained on the data, or the plan names the model's classes.
        names = pictures.class_names if self.plan.models[model].source and not spec.classes else None
        words = [str(i) if names is None else names[i] for i in range(max(labels) + 1)]
        if any("," in word for word in words):
            raise PprsError(
                f"class names of {data} have commas in them: name the model's classes in order by `classes`"
            )
        return [(",".join(words[i] for i in group), sum(label in group for label in labels)) for group in groups]

    def _check_split(self, training: ImageSet, data: str, what: str, remedy: str) -> None:
        """Refuse to train or to choose on the very images that are certified."""
        if training.fingerprint() == self.pictures(data).fingerprint():
            raise PprsError(
                f"{data} has no training split, and to {what} the images that are certified would flatter. Give it "
                f"one: a folder with train and test below it.{remedy}"
            )

    def _partition(self, cell: Cell) -> str:
        """The cell's partition; the best of several on training images where the method says so."""
        method = self.plan.methods.get(cell.method)
        spec = self.plan.data[cell.data]
        if method is None or not method.best_of or not spec.training:
            return cell.partition
        key = self.plan.cell_key(dataclasses.replace(cell, stop=None))
        settings = {"key": _digest([key, self._network(cell.model)]), "samples": self.plan.choose_samples}
        name = f"{cell.data}_{cell.model}_{cell.noise}-{cell.sigma:g}_{cell.method}-{str(settings['key'])[:6]}.jsonl"
        path = self.out / "chosen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cache = MeasurementCache(path, settings)
        chosen = str(cache.get_or_compute("best", lambda: self._best_partition(cell, method.best_of, cache)))
        self._progress.message(f"  {method.label} for {cell.data} at sigma {cell.sigma:g}: {chosen}")
        return chosen

    def _best_partition(self, cell: Cell, candidates: Sequence[str], cache: MeasurementCache) -> str:
        """The candidate with the largest average radius that votes on training images promise."""
        spec, count, samples = self.plan.data[cell.data], self.plan.choose_images, self.plan.choose_samples
        source, classes = self.source(spec.source), self._classes(cell.data)
        otherwise = f" Or write `training = false` under [data.{cell.data}]."
        training = open_dataset(source, split="train", classes=classes)
        self._check_split(training, cell.data, "choose on", otherwise)
        task = load_task(self.model(cell.model), training, labels=spec.labels)
        images = task.images[:: max(1, len(task.images) // count)][:count]
        search = Search(
            task.model.module, task.num_classes, noise_of(cell.noise, cell.sigma), task.data, cache,
            seed=self.plan.seed, device="cpu",
        )  # fmt: skip

        def promised(text: str) -> float:
            return float(search.values(parse_partition(text), images, samples)[0].mean())

        return max(candidates, key=promised)


class _BarsOnly:
    """Progress without messages: one call certifies hundreds of runs."""

    def __init__(self, progress: Progress) -> None:
        self.begin, self.advance, self.end = progress.begin, progress.advance, progress.end

    def message(self, text: str) -> None:
        pass


def label_groups(labels: list[int], many: int) -> list[list[int]]:
    """The labels that occur, so many at a time; one that is left over joins the others before it.

    >>> label_groups([7, 5, 5, 3, 1, 9], 2)
    [[1, 3], [5, 7, 9]]
    """
    present = sorted(set(labels))
    groups = [present[i : i + many] for i in range(0, len(present), many)]
    if groups and len(groups[-1]) == 1:
        left = groups.pop()
        if groups:
            groups[-1] += left
    return groups


def _stamp(path: Path) -> dict[bytes, bytes]:
    """What a file of rows says that they were made from."""
    if not path.is_file():
        return {}
    try:
        return dict(pyarrow.parquet.read_schema(path).metadata or {})
    except (OSError, pyarrow.ArrowException):
        return {}  # damaged: it is made again


def _join(runs: Sequence[Run], out: Path, key: str, network: str) -> None:
    """The rows of all runs in one file. A group's labels follow those of the groups before it.

    The network is what the plan trained; one from elsewhere is known by the runs, each with the labels that it chose
    among.
    """
    tables, offset = [], 0
    for run in runs:
        # Where the model and the data lay says nothing to others.
        model, data = Path(run.settings.model or "").name, Path(run.settings.data or "").name
        settings = dataclasses.replace(run.settings, model=model, data=data)
        tables.append(to_arrow([_shifted(row, offset) for row in run.rows()], settings))
        offset += (run.settings.num_classes or 0) if len(runs) > 1 else 0
    networks = [str(run.settings.model_digest) for run in runs]
    pictures = [str(run.settings.data_fingerprint) for run in runs]
    stamp = {KEY: key.encode(), NETWORK: network.encode() or _one(networks), PICTURES: _one(pictures)}
    write_parquet(pyarrow.concat_tables(tables).replace_schema_metadata(stamp), out, compression="zstd")


def _shifted(row: Row, offset: int) -> Row:
    """The row with its classes numbered from `offset` on."""
    label, prediction = row.label, row.prediction
    return dataclasses.replace(
        row,
        label=None if label is None else label + offset,
        prediction=None if prediction is None else prediction + offset,
        selected=row.selected + offset,
    )


def _one(digests: Sequence[str]) -> bytes:
    """One digest for all groups of labels; that of the only one as it is."""
    return (digests[0] if len(set(digests)) == 1 else _digest(digests)).encode()


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
