"""Makes what a plan's experiments need: trains its models, chooses among partitions, certifies its cells."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pprs.errors import PprsError
from pprs.files import written_whole

if TYPE_CHECKING:
    from pprs.data import ImageSet
    from pprs.reproduce import Cell, Plan

# In a parquet file: what its rows were made from, by the plan, and the network and the pictures themselves.
KEY, NETWORK, PICTURES = b"pprs", b"pprs.network", b"pprs.pictures"


class Retrained(PprsError):
    """Rows of a network that is no more: those that were made with it are to be certified again."""


class Workshop:
    """Works in a folder: models, runs, what was chosen, and the rows of every cell that is done."""

    def __init__(self, plan: Plan, out: Path, data_root: Path | None, *, draw_only: bool, threads: int | None) -> None:
        self.plan, self.out, self.draw_only = plan, out, draw_only
        self._root, self._threads = data_root, threads
        self._seen: dict[tuple[bytes, str], tuple[bytes | None, Path]] = {}
        if data_root is not None:
            os.environ["PPRS_DATA"] = str(data_root)

    def rows(self, cell: Cell) -> Path:
        """The file with a cell's rows; certified now if they are not there."""
        path = self._rows(cell)
        stamp = _stamp(path)
        for what, name, word in ((NETWORK, cell.model, "network"), (PICTURES, cell.data, "pictures")):
            found, other = self._seen.setdefault((what, name), (stamp.get(what), path))
            if found != stamp.get(what):
                if what == NETWORK and self._network(name):
                    self._seen.clear()
                    raise Retrained(f"the network {name} was trained anew: repeat the command")
                raise PprsError(
                    f"{path} and {other} were made with different {word} by the name of {name}, so they cannot be "
                    "compared. Remove the older of them and repeat the command."
                )
        return path

    def _rows(self, cell: Cell) -> Path:
        from pprs.cli.progress import duration, say

        path, key = self.out / "rows" / f"{cell.name}.parquet", self.plan.cell_key(cell)
        stamp, network = _stamp(path), self._network(cell.model)
        if stamp.get(KEY) == key.encode() and (not network or stamp.get(NETWORK) == network.encode()):
            return path
        if self.draw_only:
            raise PprsError(
                f"{path} is not there, or was made by another plan or network. Leave out --draw-only to certify what "
                "is missing."
            )
        began = time.monotonic()
        runs = self._certified(cell, key)
        _join(runs, path, key, self._network(cell.model))
        say(f"  {cell.name}: {duration(time.monotonic() - began)}")
        return path

    def source(self, text: str) -> str:
        """Data as for `--data`: a path below the root where it is there."""
        if self._root is not None and (self._root / text).exists():
            return str(self._root / text)
        return text

    def pictures(self, data: str) -> ImageSet:
        from pprs.data import open_dataset

        spec = self.plan.data[data]
        return open_dataset(self.source(spec.source), split=spec.split, classes=self._classes(data))

    def _classes(self, data: str) -> Path | None:
        text = self.plan.data[data].classes
        return Path(self.source(text)) if text else None

    def seen(self, data: str) -> ImageSet:
        """The pictures as the model of this name gets them: cut and scaled to its input."""
        from pprs.cli.setup import set_up

        spec, model = self.plan.data[data], self.plan.models[data]
        if model.source is None:
            return self.pictures(data)
        return set_up(model.source, self.source(spec.source), split=spec.split, classes=self._classes(data)).pictures

    def model(self, name: str) -> str:
        """A model's text, as for `--model`; trained now if it is not there."""
        from pprs.cli.progress import say
        from pprs.cli.train import train_with_bar
        from pprs.data import open_dataset
        from pprs.model import load_model
        from pprs.noise import Gaussian
        from pprs.partition import parse_partition
        from pprs.reproduce import read_models
        from pprs.train import Recipe

        spec = self.plan.models[name]
        if spec.source is not None:
            return spec.source
        if spec.data is None:
            raise PprsError(f"model {name} has neither a source nor data to be trained on")
        path, key = self.out / "models" / f"{name}.safetensors", self.plan.model_key(name)
        if path.is_file() and read_models(self.out).get(name, {}).get("key") == key:
            if (told := self._network(name)) and load_model(str(path)).digest() != told:
                raise PprsError(f"{path} is not the network that was trained here. Remove it, to train it anew.")
            return str(path)
        source = self.source(self.plan.data[spec.data].source)
        classes = self._classes(spec.data)
        pictures = open_dataset(source, split="train", prefer="train", classes=classes)
        self._not_the_same(pictures, spec.data, f"train {name} on", "")
        colour = pictures[0].image.shape[0] == 3
        recipe = Recipe(spec.arch, spec.width, spec.epochs, flip=colour, shift=spec.shift, seed=self.plan.seed)
        noise = None if spec.noise is None else Gaussian(spec.noise)
        say(f"training {name}")
        accuracy, images = train_with_bar(
            pictures, recipe, source, path, noise=noise, partition=parse_partition(spec.partition), classes=classes
        )
        models = read_models(self.out)  # once more: another process may have trained others meanwhile
        digest = load_model(str(path)).digest()
        models[name] = {"clean_accuracy": accuracy, "images": images, "key": key, "digest": digest}
        with written_whole(self.out / "rows" / "models.json") as part:
            part.write_text(json.dumps(models, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return str(path)

    def _certified(self, cell: Cell, key: str) -> list[Path]:
        """A run for each group of labels, or one."""
        from pprs.cli.certify import certify
        from pprs.cli.progress import silence

        data, plan = self.plan.data[cell.data], self.plan
        engine = plan.models[cell.model].engine
        model, partition = self.model(cell.model), self._partition(cell)
        classes = self._classes(cell.data)
        runs = []
        for i, (labels, count) in enumerate(self._groups(cell.data, cell.model)):
            runs.append(self._folder(cell, key) / str(i))
            with silence(), _whole(runs[-1]):
                certify.__wrapped__(  # type: ignore[attr-defined]
                    model, self.source(data.source), cell.sigma, partition, cell.noise, out=str(runs[-1]),
                    n0=data.n0 or plan.n0, n=data.n or plan.n, alpha=plan.alpha, stop=cell.stop, split=data.split,
                    classes=classes, labels=labels, stride=data.stride, limit=count,
                    seed=plan.seed, engine=engine, threads=self._threads, compare=False,
                )  # fmt: skip
        return runs

    def _network(self, model: str) -> str:
        """The digest of a model that was trained here by this plan; else nothing."""
        from pprs.reproduce import read_models

        told = read_models(self.out).get(model, {})
        return str(told.get("digest", "")) if told.get("key") == self.plan.model_key(model) else ""

    def _folder(self, cell: Cell, key: str) -> Path:
        """Where a cell is certified: another place for another network, so that each goes on with its own."""
        network = self._network(cell.model)[:6]
        return self.out / "runs" / (f"{cell.name}-{key[:6]}" + (f"-{network}" if network else ""))

    def _groups(self, data: str, model: str) -> list[tuple[str | None, int]]:
        """The labels that occur, so many at a time (None: all at once), and how many of the images have them."""
        spec = self.plan.data[data]
        if spec.labels_at_a_time is None:
            return [(spec.labels, spec.images)]
        from pprs.runner import choose

        pictures = self.pictures(data)
        images = choose(len(pictures), stride=spec.stride, limit=spec.images)
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

    def _not_the_same(self, training: ImageSet, data: str, what: str, remedy: str) -> None:
        """Refuse to train or to choose on the very images that are certified."""
        if training.fingerprint() == self.pictures(data).fingerprint():
            raise PprsError(
                f"{data} has no training split, and to {what} the images that are certified would flatter. Give it "
                f"one: a folder with train and test below it.{remedy}"
            )

    def _partition(self, cell: Cell) -> str:
        """The cell's partition; the best of several on training images where the method says so."""
        from pprs.cli.common import make_noise
        from pprs.cli.progress import say
        from pprs.cli.run import on_engine
        from pprs.cli.setup import set_up
        from pprs.data import open_dataset
        from pprs.partition import parse_partition
        from pprs.tune import Notebook, Search

        method = self.plan.methods.get(cell.method)
        spec = self.plan.data[cell.data]
        if method is None or not method.best_of or not spec.training:
            return cell.partition
        count, samples = self.plan.choose_images, self.plan.choose_samples
        key = self.plan.cell_key(dataclasses.replace(cell, stop=None))
        settings: dict[str, Any] = {"key": _digest([key, self._network(cell.model)]), "samples": samples}
        name = f"{cell.data}_{cell.model}_{cell.noise}-{cell.sigma:g}_{cell.method}-{settings['key'][:6]}.jsonl"
        path = self.out / "chosen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        notebook = Notebook(path, settings)

        def best() -> str:
            source, classes = self.source(spec.source), self._classes(cell.data)
            otherwise = f" Or write `training = false` under [data.{cell.data}]."
            training = open_dataset(source, split="train", classes=classes)
            self._not_the_same(training, cell.data, "choose on", otherwise)
            setup = set_up(self.model(cell.model), source, split="train", classes=classes, labels=spec.labels)
            images = setup.images[:: max(1, len(setup.images) // count)][:count]
            noise = make_noise(cell.noise, cell.sigma)
            ready = on_engine(
                setup, noise, None, seed=self.plan.seed, say=lambda _: None, engine="torch", device="cpu", samples=0,
                autocast=False, channels_last=False,
            )  # fmt: skip
            search = Search(
                ready.model.module, setup.num_classes, noise, setup.pictures, notebook, seed=self.plan.seed,
                device="cpu",
            )  # fmt: skip
            return max(
                method.best_of, key=lambda text: float(search.values(parse_partition(text), images, samples)[0].mean())
            )

        chosen = str(notebook.once("best", best))
        say(f"  {method.label} for {cell.data} at sigma {cell.sigma:g}: {chosen}")
        return chosen


@contextlib.contextmanager
def _whole(run: Path) -> Iterator[None]:
    """A run with images that failed is not one to draw from."""
    try:
        yield
    except typer.Exit as left:
        raise PprsError(f"images of the run {run} failed: see `pprs report {run}`, and repeat the command") from left


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
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        return {}
    try:
        return dict(pyarrow.parquet.read_schema(path).metadata or {})
    except (OSError, pyarrow.ArrowException):
        return {}  # damaged: it is made again


def _join(runs: list[Path], out: Path, key: str, network: str) -> None:
    """The rows of all runs in one file. A group's labels follow those of the groups before it.

    The network is what the plan trained; of one from elsewhere the runs tell, each with the labels that it chose among.
    """
    import pyarrow
    import pyarrow.parquet

    from pprs.record import Run
    from pprs.report.export import record

    records: list[dict[str, Any]] = []
    offset = 0
    networks, pictures = [], []
    for folder in runs:
        with Run.read(folder) as run:
            settings, rows = run.settings, run.outcomes()
        networks.append(settings["model_digest"])
        pictures.append(settings["data_fingerprint"])
        for row in rows:
            made = record(row, settings)
            for column in ("label", "predict", "selected"):
                if made[column] is not None and made[column] >= 0:
                    made[column] += offset
            records.append(made)
        offset += settings["num_classes"] if len(runs) > 1 else 0
    # Where the model and the data lay says nothing to others.
    for made in records:
        made["model"], made["data"] = Path(made["model"]).name, Path(made["data"]).name
    stamp = {KEY: key.encode(), NETWORK: network.encode() or _one(networks), PICTURES: _one(pictures)}
    table = pyarrow.Table.from_pylist(records).replace_schema_metadata(stamp)
    with written_whole(out) as part:
        pyarrow.parquet.write_table(table, part, compression="zstd")


def _one(digests: list[str]) -> bytes:
    """One digest for all groups of labels; that of the only one as it is."""
    return (digests[0] if len(set(digests)) == 1 else _digest(digests)).encode()


def _digest(parts: list[str]) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
