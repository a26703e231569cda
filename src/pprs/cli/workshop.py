"""Makes what a plan's experiments need: trains its models, chooses among partitions, certifies its cells."""

from __future__ import annotations

import contextlib
import dataclasses
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

KEY = b"pprs"  # in a parquet file: what its rows were made from


class Workshop:
    """Works in a folder: models, runs, what was chosen, and the rows of every cell that is done."""

    def __init__(self, plan: Plan, out: Path, data_root: Path | None, *, draw_only: bool, threads: int | None) -> None:
        self.plan, self.out, self._root, self._draw_only, self._threads = plan, out, data_root, draw_only, threads
        if data_root is not None:
            os.environ["PPRS_DATA"] = str(data_root)

    def rows(self, cell: Cell) -> Path:
        """The file with a cell's rows; certified now if they are not there."""
        from pprs.cli.progress import duration, say

        path, key = self.out / "rows" / f"{cell.name}.parquet", self.plan.cell_key(cell)
        if _key_of(path) == key:
            return path
        if self._draw_only:
            raise PprsError(
                f"{path} is not there, or was made by another plan. Leave out --draw-only to certify what is missing."
            )
        began = time.monotonic()
        runs = self._certified(cell, key)
        _join(runs, path, key)
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
        classes = Path(self.source(spec.classes)) if spec.classes else None
        return open_dataset(self.source(spec.source), split=spec.split, classes=classes)

    def seen(self, data: str) -> ImageSet:
        """The pictures as the model of this name gets them: cut and scaled to its input."""
        from pprs.cli.setup import set_up

        spec, model = self.plan.data[data], self.plan.models[data]
        if model.source is None:
            return self.pictures(data)
        return set_up(model.source, self.source(spec.source), split=spec.split).pictures

    def model(self, name: str) -> str:
        """A model's text, as for `--model`; trained now if it is not there."""
        from pprs.cli.progress import say
        from pprs.cli.train import train_with_bar
        from pprs.data import open_dataset
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
            return str(path)
        source = self.source(self.plan.data[spec.data].source)
        pictures = open_dataset(source, split="train", prefer="train")
        colour = pictures[0].image.shape[0] == 3
        recipe = Recipe(spec.arch, spec.width, spec.epochs, flip=colour, shift=spec.shift, seed=self.plan.seed)
        noise = None if spec.noise is None else Gaussian(spec.noise)
        say(f"training {name}")
        accuracy, images = train_with_bar(
            pictures, recipe, source, path, noise=noise, partition=parse_partition(spec.partition)
        )
        told = read_models(self.out)  # once more: another process may have trained others meanwhile
        told[name] = {"clean_accuracy": accuracy, "images": images, "key": key}
        with written_whole(self.out / "rows" / "models.json") as part:
            part.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return str(path)

    def _certified(self, cell: Cell, key: str) -> list[Path]:
        """A run for each group of labels, or one."""
        from pprs.cli.certify import certify
        from pprs.cli.progress import silence

        data, plan = self.plan.data[cell.data], self.plan
        engine = plan.models[cell.model].engine
        model, partition = self.model(cell.model), self._partition(cell)
        classes = Path(self.source(data.classes)) if data.classes else None
        runs = []
        for i, labels in enumerate(self._groups(cell.data)):
            runs.append(self.out / "runs" / f"{cell.name}-{key[:6]}" / str(i))
            with silence(), _whole(runs[-1]):
                certify.__wrapped__(  # type: ignore[attr-defined]
                    model, self.source(data.source), cell.sigma, partition, cell.noise, out=str(runs[-1]),
                    n0=data.n0 or plan.n0, n=data.n or plan.n, alpha=plan.alpha, stop=cell.stop, split=data.split,
                    classes=classes, labels=labels, stride=data.stride, limit=None if labels else data.images,
                    seed=plan.seed, engine=engine, threads=self._threads, compare=False,
                )  # fmt: skip
        return runs

    def _groups(self, data: str) -> list[str | None]:
        """The labels that occur, so many at a time; None: all at once."""
        many = self.plan.data[data].labels_at_a_time
        if many is None:
            return [self.plan.data[data].labels]
        from pprs.runner import choose

        pictures, spec = self.pictures(data), self.plan.data[data]
        images = choose(len(pictures), stride=spec.stride, limit=spec.images)
        present = sorted({label for i in images if (label := pictures.label_of(i)) is not None})
        return [",".join(map(str, present[i : i + many])) for i in range(0, len(present), many)]

    def _partition(self, cell: Cell) -> str:
        """The cell's partition; the best of several on training images where the method says so."""
        from pprs.cli.common import make_noise
        from pprs.cli.progress import say
        from pprs.cli.run import on_engine
        from pprs.cli.setup import set_up
        from pprs.partition import parse_partition
        from pprs.tune import Notebook, Search

        method = self.plan.methods.get(cell.method)
        spec = self.plan.data[cell.data]
        if method is None or not method.best_of or spec.labels_at_a_time is not None:
            return cell.partition
        count, samples = self.plan.choose_images, self.plan.choose_samples
        settings: dict[str, Any] = {"key": self.plan.cell_key(dataclasses.replace(cell, stop=None)), "samples": samples}
        name = f"{cell.data}_{cell.model}_{cell.noise}-{cell.sigma:g}_{cell.method}-{settings['key'][:6]}.jsonl"
        path = self.out / "chosen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        notebook = Notebook(path, settings)

        def best() -> str:
            source = self.source(spec.source)
            setup = set_up(self.model(cell.model), source, split="train", limit=None)
            images = list(range(0, len(setup.pictures), max(1, len(setup.pictures) // count)))[:count]
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


def _key_of(path: Path) -> str | None:
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        return None
    try:
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
    except (OSError, pyarrow.ArrowException):
        return None  # damaged: it is made again
    found = metadata.get(KEY)
    return found.decode() if found else None


def _join(runs: list[Path], out: Path, key: str) -> None:
    """The rows of all runs in one file. A group's labels follow those of the groups before it."""
    import pyarrow
    import pyarrow.parquet

    from pprs.record import Run
    from pprs.report.export import record

    records: list[dict[str, Any]] = []
    offset = 0
    for folder in runs:
        with Run.read(folder) as run:
            settings, rows = run.settings, run.outcomes()
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
    table = pyarrow.Table.from_pylist(records).replace_schema_metadata({KEY: key.encode()})
    with written_whole(out) as part:
        pyarrow.parquet.write_table(table, part, compression="zstd")
