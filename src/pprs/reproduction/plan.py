"""A plan: data sets, models, methods, experiments, and the cells that the experiments need certified."""

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

from pprs.dither.thresholds import Dither, is_dither, parse_dither
from pprs.inputs.domain import IMAGE
from pprs.noise import Noise, noise_of
from pprs.reproduction.former_rules import FORMER, PRESENT
from pprs.smoothing.sampling import decided_radii

VALUE = "{}"  # placeholder of a sweep's value in a partition


@dataclass(frozen=True)
class Data:
    """A data set: its source, which of its images are certified, and settings that override the plan's."""

    source: str
    images: int
    title: str | None = None  # of figures
    domain: str = IMAGE.name
    training: bool = True  # whether it has a training split, on which methods with `best_of` choose
    stride: int = 1
    split: str | None = None
    classes: str | None = None
    labels: str | None = None
    labels_at_a_time: int | None = None
    n0: int | None = None
    n: int | None = None
    stop: str | None = None


@dataclass(frozen=True)
class ModelSpec:
    """A model: a source as for `--model`, how to train one, or how to adapt another one without labels."""

    source: str | None = None
    engine: str = "auto"
    data: str | None = None
    arch: str = "resnet18"
    width: int | None = None
    epochs: int = 10
    shift: int = 2
    noise: float | None = None
    kind: str | None = None  # of the noise, by default Gaussian
    partition: str = "none"
    seed: int | None = None  # of the training, by default the plan's
    of: str | None = None  # the model to adapt to this noise and partition
    adapt: str | None = None  # the method of the adaptation, as for `pprs adapt`
    photos: str | None = None  # unlabelled images to adapt with, by default the training images of the model's data
    images: int | None = None  # how many of them
    budget: str | None = None  # of the adaptation
    batch_size: int | None = None  # of the training
    label: str | None = None  # in tables and figures, by default how it was trained

    def to_key(self) -> dict[str, Any]:
        """The fields for the key of a model. Those that plans did not have before are left out if they are not set."""
        values = dataclasses.asdict(self)
        del values["label"]
        return {name: value for name, value in values.items() if name not in _ADDED or value is not None}


_ADDED = ("kind", "seed", "of", "adapt", "photos", "images", "budget", "batch_size")


@dataclass(frozen=True)
class Method:
    """A partition, or the best of several on training images. Without training images it is `partition`."""

    label: str
    partition: str
    best_of: tuple[str, ...] = ()
    like: str | None = None  # the method of the paper to compare with, by default the one with the same name


@dataclass(frozen=True)
class Line:
    """A method in an experiment, with its noise and kind of model, written as `kind@noise/method`."""

    method: str
    noise: str = "gaussian"
    kind: str = ""
    value: float | None = None  # of the sweep it belongs to

    @property
    def is_counted(self) -> bool:
        """Whether votes behind thresholds are counted."""
        return is_dither(self.noise)

    @classmethod
    def read(cls, text: str) -> Line:
        kind, at, rest = text.rpartition("@")
        noise, slash, method = rest.rpartition("/")
        return cls(method, noise if slash else "gaussian", kind if at else "")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        """A line is a text in the file of a plan."""
        return core_schema.no_info_after_validator_function(cls.read, core_schema.str_schema(strict=True))


@dataclass(frozen=True)
class Experiment:
    """A table or figure for each data set: lines at each of the sigmas, or at the one that matches an accuracy."""

    name: str
    title: str
    draw: str
    lines: tuple[Line, ...] = ()
    radius: float = 0.0
    stop: str | Mapping[str, str] | None = None  # for all data sets, or by data set
    more: Mapping[str, tuple[Line, ...]] = field(default_factory=dict)  # additional lines by data set
    sigmas: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    match: Mapping[str, float] = field(default_factory=dict)
    paper: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)  # by others, at L1 norms
    over: str | None = None
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    images: int | None = None  # how many images a gallery shows, by default all

    @property
    def data(self) -> list[str]:
        return list(self.match or self.sigmas)

    def stop_for(self, data: str) -> str | None:
        """The experiment's own stop rule for a data set, if it has one."""
        return self.stop.get(data) if isinstance(self.stop, Mapping) else self.stop

    def lines_for(self, data: str) -> list[Line]:
        """The lines for a data set, including one for each value of a sweep."""
        swept = [Line(str(self.over), value=value) for value in self.values.get(data, ())]
        return [*self.lines, *self.more.get(data, ()), *swept]


@dataclass(frozen=True)
class Cell:
    """The unit of certification: a model, a noise and a method on a data set. All fields are hashed in its key."""

    data: str
    model: str
    noise: str
    sigma: float
    method: str
    partition: str
    stop: str | None

    @property
    def is_counted(self) -> bool:
        """Whether votes behind thresholds are counted, so many as sigma says."""
        return is_dither(self.noise)

    @property
    def name(self) -> str:
        noise = self.noise.replace(":", "-").replace("=", "-").replace(",", "-")
        rule = (
            ""
            if self.stop == "abstain" or self.is_counted
            else "_" + (self.stop or "all").replace(":", "-").replace(",", "-")
        )
        return f"{self.data}_{self.model}_{noise}-{self.sigma:g}_{self.method}{rule}"


@dataclass(frozen=True)
class ReproductionPlan:
    """The contents of a plan's file."""

    n0: int
    n: int
    alpha: float
    seed: int
    choose_images: int
    choose_samples: int
    stop: str | None  # unless the experiment or the data set has one
    data: Mapping[str, Data]
    models: Mapping[str, ModelSpec]
    methods: Mapping[str, Method]
    experiments: Mapping[str, Experiment]
    rules: str = PRESENT  # by which options that are left out follow the noise

    def cell(self, experiment: Experiment, data: str, line: Line, sigma: float) -> Cell:
        """The cell of an experiment's line at this sigma.

        If another experiment needs the same cell decided at more radii, that cell serves both.
        """
        own = self._own_cell(experiment, data, line, sigma)
        rules = self._stop_rules.get(dataclasses.replace(own, stop=None), ())
        return dataclasses.replace(own, stop=max((*rules, own.stop), key=lambda rule: _coverage(own.stop, rule)))

    def _own_cell(self, experiment: Experiment, data: str, line: Line, sigma: float) -> Cell:
        if line.value is not None:
            partition = line.method.replace(VALUE, f"{line.value:g}")
            method = partition.replace(":", "-").replace("=", "-").replace("/", "-").replace(",", "-")
        else:
            partition, method = self.methods[line.method].partition, line.method
        model = self.model_name(data, line, sigma)
        stop = None if line.is_counted else self.stop_rule(experiment, data)
        return Cell(data, model, line.noise, sigma, method, partition, stop)

    def model_name(self, data: str, line: Line, sigma: float) -> str:
        """The model of a line: that of its kind which was made for this sigma, if there is one."""
        name = f"{data}-{line.kind}" if line.kind else data
        return at_sigma if (at_sigma := f"{name}-{sigma:g}") in self.models else name

    def stop_rule(self, experiment: Experiment, data: str) -> str | None:
        """The stop rule of an experiment on a data set. Its rows may come from a rule that decides more radii."""
        return experiment.stop_for(data) or self.data[data].stop or self.stop

    @functools.cached_property
    def _stop_rules(self) -> dict[Cell, list[str | None]]:
        """The stop rules that experiments have for each cell, by the cell without a stop rule."""
        rules: dict[Cell, list[str | None]] = {}
        for experiment in self.experiments.values():
            for data in () if experiment.match else experiment.data:
                for sigma, line in itertools.product(experiment.sigmas[data], experiment.lines_for(data)):
                    cell = self._own_cell(experiment, data, line, sigma)
                    rules.setdefault(dataclasses.replace(cell, stop=None), []).append(cell.stop)
        return rules

    def paper_numbers(self, experiment: Experiment, data: str, line: Line) -> tuple[float, ...]:
        """The paper's numbers for a line. It has some for Gaussian noise and clean-trained classifiers only."""
        if line.noise != "gaussian" or line.kind:
            return ()
        method = self.methods.get(line.method)
        name = method.like if method is not None and method.like else line.method
        return experiment.paper.get(data, {}).get(name, ())

    def label(self, line: Line) -> str:
        """The name of a line in tables and figures."""
        name = self.methods[line.method].label if line.value is None else f"{self.sweep_label(line)}, {line.value:g}"
        noise = line.noise.partition(":")[2] if line.is_counted else line.noise.removeprefix("gaussian")
        noise = f", {noise}" if noise else ""
        of_kind = {f"{data}-{line.kind}" for data in self.data}
        models = (model for name, model in self.models.items() if {name, _without_sigma(name, model)} & of_kind)
        label = next((model.label for model in models if model.label), f"{line.kind}-trained")
        return name + noise + (f" ({label})" if line.kind else "")

    def unadapted(self, data: str, line: Line) -> Line:
        """The same method with the model that an adapted one was made of."""
        of = self.models[f"{data}-{line.kind}"].of if line.kind else None
        return line if of is None else dataclasses.replace(line, kind=of.removeprefix(data).removeprefix("-"))

    def sweep_label(self, line: Line) -> str:
        """The label of the method that a sweep varies, or the name of its partition if no method has it."""
        plain = line.method.partition(":")[0]
        return next((method.label for method in self.methods.values() if method.partition == plain), plain)

    def title(self, data: str) -> str:
        """The name of a data set in figures."""
        return self.data[data].title or data

    def class_name(self, data: str, index: int) -> str:
        """The name of a class, or its number if the data set has no names."""
        spec = self.data[data]
        names = (spec.labels or "").split(",") if spec.labels_at_a_time is None else ()
        return names[index].strip() if index < len(names) and len(names) > 1 else str(index)

    def data_of(self, model: str) -> str:
        """The data set on which a model is certified, which its name begins with."""
        fitting = [name for name in self.data if model == name or model.startswith(f"{name}-")]
        return max(fitting, key=len)

    def model_key(self, model: str) -> str:
        """A hash of everything that a model depends on."""
        spec = self.models[model]
        data = self.data[spec.data] if spec.data else None
        order = [data.classes] if data and data.classes else []  # since they give the labels their meaning
        base = [self.model_key(spec.of)] if spec.of else []
        rules = self._hashed_rules if spec.partition != "none" else []
        return _digest(spec.to_key(), data and data.source, self.seed, *order, *base, *rules)

    def cell_key(self, cell: Cell) -> str:
        """A hash of everything that a cell's rows depend on."""
        method = self.methods.get(cell.method)
        tuned = method is not None and bool(method.best_of) and self.data[cell.data].training
        choice = [method.best_of, self.choose_images, self.choose_samples] if method and tuned else None
        data = self.data[cell.data]
        images = [
            data.source, data.split, data.classes, data.images, data.stride, data.labels, data.labels_at_a_time
        ]  # fmt: skip
        sizes = [data.n0 or self.n0, data.n or self.n, self.alpha, self.seed]
        rules = self._hashed_rules if cell.partition != "none" else []
        return _digest(dataclasses.asdict(cell), self.model_key(cell.model), images, sizes, choice, *rules)

    @property
    def _hashed_rules(self) -> list[str]:
        """The rules as part of a key. The keys of rows that are older than the present rules do not name any."""
        return [] if self.rules == FORMER else [self.rules]


def noise_at(text: str, sigma: float) -> Noise | Dither:
    """Return the noise with this name and options and this sigma, or that many thresholds.

    >>> print(noise_at("gaussian", 0.5), noise_at("dither:template=random", 1020))
    gaussian:sigma=0.5 dither:levels=1020,template=random,channels=shared,seed=0
    """
    if not is_dither(text):
        return noise_of(text, sigma)
    name, _, options = text.partition(":")
    return parse_dither(f"{name}:levels={sigma:.12g}" + (f",{options}" if options else ""))


def _without_sigma(name: str, model: ModelSpec) -> str:
    """The name of a model without the sigma it ends with, if it was made for one of several."""
    return name if model.noise is None else name.removesuffix(f"-{model.noise:g}")


def _coverage(own: str | None, other: str | None) -> int:
    """The number of radii that the other rule decides, if rows made by it can serve this rule, else 0.

    They can if it decides the same radii and larger ones, which do not change the outcome at the smaller ones. With
    smaller radii, sampling would continue where this rule ends it. Without radii, only the same rule will do.
    """
    own_radii, other_radii = sorted(decided_radii(own) or ()), sorted(decided_radii(other) or ())
    return len(other_radii) if own_radii and other_radii[: len(own_radii)] == own_radii else int(other == own)


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
