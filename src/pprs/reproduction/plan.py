"""What is to be reproduced: data, models, methods, experiments, and the cells that they need certified."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import CoreSchema, core_schema

from pprs.sampling import decided_radii

VALUE = "{}"  # in a text: where a sweep's value goes


@dataclass(frozen=True)
class Data:
    """Which images of a source are certified, and how thoroughly if not as the others."""

    source: str
    images: int
    title: str | None = None  # in figures
    training: bool = True  # whether it has a training split, for methods that are the best of several
    stride: int = 1
    split: str | None = None
    classes: str | None = None
    labels: str | None = None
    labels_at_a_time: int | None = None
    n0: int | None = None
    n: int | None = None
    stop: str | None = None


@dataclass(frozen=True)
class Model:
    """A source as for `--model`, or how to train one."""

    source: str | None = None
    engine: str = "auto"
    data: str | None = None
    arch: str = "resnet18"
    width: int | None = None
    epochs: int = 10
    shift: int = 2
    noise: float | None = None
    partition: str = "none"


@dataclass(frozen=True)
class Method:
    """A partition, or the best of several on training images (the partition where there are none)."""

    label: str
    partition: str
    best_of: tuple[str, ...] = ()
    like: str | None = None  # the method of the paper that it is compared with; of the same name unless given


@dataclass(frozen=True)
class Line:
    """One method in an experiment, under a noise, with a kind of model: `noise@exponential/slic`."""

    method: str
    noise: str = "gaussian"
    kind: str = ""
    value: float | None = None  # of a sweep

    @classmethod
    def read(cls, text: str) -> Line:
        kind, at, rest = text.rpartition("@")
        noise, slash, method = rest.rpartition("/")
        return cls(method, noise if slash else "gaussian", kind if at else "")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        """In a plan's file a line is a text."""
        return core_schema.no_info_after_validator_function(cls.read, core_schema.str_schema(strict=True))


@dataclass(frozen=True)
class Experiment:
    """A table or a figure for each data set: lines, under each of the sigmas (or the one that matches)."""

    name: str
    title: str
    draw: str
    lines: tuple[Line, ...] = ()
    radius: float = 0.0
    stop: str | Mapping[str, str] | None = None  # one for all, or those of these data sets
    more: Mapping[str, tuple[Line, ...]] = field(default_factory=dict)  # lines of these data sets alone
    sigmas: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    match: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    over: str | None = None
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    images: int | None = None  # of a gallery: the first so many; all of the data set's unless given

    @property
    def data(self) -> list[str]:
        return list(self.match or self.sigmas)

    def stop_for(self, data: str) -> str | None:
        """Its own rule for a data set, if it has one."""
        return self.stop.get(data) if isinstance(self.stop, Mapping) else self.stop

    def lines_for(self, data: str) -> list[Line]:
        """Its lines for a data set, a sweep's values among them."""
        swept = [Line(str(self.over), value=value) for value in self.values.get(data, ())]
        return [*self.lines, *self.more.get(data, ()), *swept]


@dataclass(frozen=True)
class Cell:
    """What is certified at once: a model, a method and a noise on a data set. Its name is that of its rows."""

    data: str
    model: str
    noise: str
    sigma: float
    method: str
    partition: str
    stop: str | None

    @property
    def name(self) -> str:
        rule = "" if self.stop == "abstain" else "_" + (self.stop or "all").replace(":", "-").replace(",", "-")
        return f"{self.data}_{self.model}_{self.noise}-{self.sigma:g}_{self.method}{rule}"


@dataclass(frozen=True)
class Plan:
    """The whole file."""

    n0: int
    n: int
    alpha: float
    seed: int
    choose_images: int
    choose_samples: int
    stop: str | None  # where neither the experiment nor the data set says one
    data: Mapping[str, Data]
    models: Mapping[str, Model]
    methods: Mapping[str, Method]
    experiments: Mapping[str, Experiment]

    def cell(self, experiment: Experiment, data: str, line: Line, sigma: float) -> Cell:
        """What one line of an experiment needs at this sigma; where another decides more radii, what that one needs."""
        own = self._own_cell(experiment, data, line, sigma)
        asked = self._rules.get(dataclasses.replace(own, stop=None), ())
        return dataclasses.replace(own, stop=max((*asked, own.stop), key=lambda rule: _covered(own.stop, rule)))

    def _own_cell(self, experiment: Experiment, data: str, line: Line, sigma: float) -> Cell:
        if line.value is not None:
            partition = line.method.replace(VALUE, f"{line.value:g}")
            method = partition.replace(":", "-").replace("=", "-").replace("/", "-").replace(",", "-")
        else:
            partition, method = self.methods[line.method].partition, line.method
        model = f"{data}-{line.kind}" if line.kind else data
        return Cell(data, model, line.noise, sigma, method, partition, self.rule(experiment, data))

    def rule(self, experiment: Experiment, data: str) -> str | None:
        """An experiment's own rule to stop; its rows may have been made by one that decides more."""
        return experiment.stop_for(data) or self.data[data].stop or self.stop

    @functools.cached_property
    def _rules(self) -> dict[Cell, list[str | None]]:
        """For every cell, whatever its rule, the rules that experiments have for it."""
        found: dict[Cell, list[str | None]] = {}
        for experiment in self.experiments.values():
            for data in () if experiment.match else experiment.data:
                for sigma, line in itertools.product(experiment.sigmas[data], experiment.lines_for(data)):
                    cell = self._own_cell(experiment, data, line, sigma)
                    found.setdefault(dataclasses.replace(cell, stop=None), []).append(cell.stop)
        return found

    def paper(self, experiment: Experiment, data: str, line: Line) -> tuple[float, ...]:
        """What the paper has for a line, if anything: under a Gaussian, with a clean-trained classifier."""
        if line.noise != "gaussian" or line.kind:
            return ()
        method = self.methods.get(line.method)
        name = method.like if method is not None and method.like else line.method
        return experiment.paper.get(data, {}).get(name, ())

    def label(self, line: Line) -> str:
        """How a line is called in tables and figures."""
        name = self.methods[line.method].label if line.value is None else f"{self.scheme(line)}, {line.value:g}"
        law = "" if line.noise == "gaussian" else f", {line.noise}"
        return name + law + (f" ({line.kind}-trained)" if line.kind else "")

    def scheme(self, line: Line) -> str:
        """What a sweep's line is a number of: the label of the method, as far as there is one."""
        plain = line.method.partition(":")[0]
        return next((method.label for method in self.methods.values() if method.partition == plain), plain)

    def title(self, data: str) -> str:
        """How figures call a data set."""
        return self.data[data].title or data

    def class_name(self, data: str, index: int) -> str:
        """A class as the data set's labels call it; its number where there are none."""
        spec = self.data[data]
        names = (spec.labels or "").split(",") if spec.labels_at_a_time is None else ()
        return names[index].strip() if index < len(names) and len(names) > 1 else str(index)

    def model_key(self, model: str) -> str:
        """Changes with whatever a model depends on."""
        spec = self.models[model]
        data = self.data[spec.data] if spec.data else None
        order = [data.classes] if data and data.classes else []  # what the labels mean
        return _digest(dataclasses.asdict(spec), data and data.source, self.seed, *order)

    def cell_key(self, cell: Cell) -> str:
        """Changes with whatever a cell's rows depend on."""
        method = self.methods.get(cell.method)
        tuned = method is not None and bool(method.best_of) and self.data[cell.data].training
        chosen = [method.best_of, self.choose_images, self.choose_samples] if method and tuned else None
        data = self.data[cell.data]
        images = [
            data.source, data.split, data.classes, data.images, data.stride, data.labels, data.labels_at_a_time
        ]  # fmt: skip
        sizes = [data.n0 or self.n0, data.n or self.n, self.alpha, self.seed]
        return _digest(dataclasses.asdict(cell), self.model_key(cell.model), images, sizes, chosen)


def _covered(own: str | None, other: str | None) -> int:
    """How many radii the other rule decides if those are one's own and larger ones; else none, unless it is one's own.

    Larger ones change nothing about one's own. For smaller ones sampling would go on where it is given up now.
    """
    mine, theirs = sorted(decided_radii(own) or ()), sorted(decided_radii(other) or ())
    return len(theirs) if mine and theirs[: len(mine)] == mine else int(other == own)


def _digest(*what: Any) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
