"""A plan from its file: the types of its values, and what would fail later, told before anything is made."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pprs._checks import validate
from pprs.engine import ENGINES
from pprs.errors import PprsError, suggest
from pprs.model.resnet import ARCHITECTURES
from pprs.noise import NOISES, Gaussian
from pprs.partition import parse_partition
from pprs.reproduction.plan import VALUE, Data, Experiment, Line, Method, Model, Plan
from pprs.sampling import Sampling, check_reach, decided_radii, parse_stop

PLANS = {quick: Path(__file__).with_name(name) for quick, name in ((False, "paper.toml"), (True, "quick.toml"))}
TOP = "top level"  # of the file, in messages
KINDS = ("table", "curves", "sweep", "gallery")


def read_plan(path: Path | None = None, *, quick: bool = False) -> Plan:
    """The plan in this file; else the paper's, or the one for a quick look."""
    where = path or PLANS[quick]
    try:
        content = tomllib.loads(where.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PprsError(f"cannot read the plan {where}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise PprsError(f"the plan {where} is not TOML: {error}") from error
    try:
        plan = _plan(content)
        _check(plan)
    except PprsError as error:
        raise PprsError(f"the plan {where}: {error}") from error
    return plan


@dataclass(frozen=True)
class _Choice:
    """How many training images, and samples of each, choose the best of several partitions."""

    images: int
    samples: int


@dataclass(frozen=True)
class _File:
    """The file's top, before its parts are read."""

    n0: int
    n: int
    alpha: float
    seed: int
    choose: Mapping[str, Any]
    data: Mapping[str, Mapping[str, Any]]
    model: Mapping[str, Mapping[str, Any]]
    method: Mapping[str, Mapping[str, Any]]
    experiment: Mapping[str, Mapping[str, Any]]
    stop: str | None = None


def _plan(content: dict[str, Any]) -> Plan:
    top = validate(_File, content, TOP)
    choose = validate(_Choice, top.choose, "choose")
    return Plan(
        top.n0,
        top.n,
        top.alpha,
        top.seed,
        choose.images,
        choose.samples,
        top.stop,
        {name: validate(Data, values, f"data {name}") for name, values in top.data.items()},
        {name: validate(Model, values, f"model {name}") for name, values in top.model.items()},
        {name: validate(Method, values, f"method {name}") for name, values in top.method.items()},
        {
            name: validate(Experiment, {**values, "name": name}, f"experiment {name}")
            for name, values in top.experiment.items()
        },
    )


def _check(plan: Plan) -> None:
    """What would fail later, told before anything is trained."""
    Sampling(plan.n0, plan.n, plan.alpha)  # which checks them
    _at_least(1, {"choose: images": plan.choose_images, "choose: samples": plan.choose_samples})
    _at_least(0, {"seed": plan.seed})
    for name, method in plan.methods.items():
        for text in (method.partition, *method.best_of):
            _within(f"method {name}", parse_partition, text)
    _within(TOP, parse_stop, plan.stop)
    for name, data in plan.data.items():
        where = f"data {name}"
        _within(where, parse_stop, data.stop)
        sizes = {"images": data.images, "stride": data.stride, "n0": data.n0, "n": data.n}
        _at_least(1, {f"{where}: {word}": value for word, value in sizes.items()})
        _at_least(2, {f"{where}: labels_at_a_time": data.labels_at_a_time})
    for name, model in plan.models.items():
        _check_model(plan, model, f"model {name}")
    for name, experiment in plan.experiments.items():
        _check_experiment(plan, experiment, f"experiment {name}")


def _check_model(plan: Plan, model: Model, where: str) -> None:
    _within(where, parse_partition, model.partition)
    if model.source is None and model.data is None:
        raise PprsError(f'{where} has neither a "source" nor "data" to be trained on')
    if model.data is not None and model.data not in plan.data:
        raise PprsError(f'{where}: no data is called "{model.data}". {suggest(model.data, plan.data)}')
    if model.source is None and model.arch not in ARCHITECTURES:
        raise PprsError(f'{where}: no architecture is called "{model.arch}". {suggest(model.arch, ARCHITECTURES)}')
    if model.engine not in ENGINES:
        raise PprsError(f'{where}: no engine is called "{model.engine}". {suggest(model.engine, ENGINES)}')
    _at_least(1, {f"{where}: epochs": model.epochs, f"{where}: width": model.width})
    _at_least(0, {f"{where}: shift": model.shift})
    if model.noise is not None and model.noise <= 0:
        raise PprsError(f"{where}: noise is a sigma above 0, not {model.noise:g}")


def _check_experiment(plan: Plan, experiment: Experiment, where: str) -> None:
    rules = experiment.stop if isinstance(experiment.stop, Mapping) else {}
    if experiment.draw not in KINDS:
        raise PprsError(f'{where}: cannot draw "{experiment.draw}". {suggest(experiment.draw, KINDS)}')
    if not experiment.data:
        raise PprsError(f'{where} has no "sigmas" (or "match") for any data set')
    if experiment.match and "rs" not in plan.methods:
        raise PprsError(f'{where}: to match an accuracy of plain smoothing takes a method called "rs"')
    if any(not sigmas or min(sigmas) <= 0 for sigmas in experiment.sigmas.values()):
        raise PprsError(f"{where}: a data set has one sigma or more, each above 0")
    if any(not 1 <= len(numbers) <= 3 for told in experiment.paper.values() for numbers in told.values()):
        raise PprsError(
            f"{where}: of the paper's it takes accuracy, F measure and number of superpixels, or the first of these"
        )
    _at_least(1, {f"{where}: images": experiment.images})
    only = {
        "more lines": experiment.more,
        "a stop rule": rules,
        "values": experiment.values,
        "numbers": experiment.paper,
    }
    for on, what in [(on, what) for what, those in only.items() for on in those]:
        if on not in experiment.data:
            raise PprsError(f'{where}: {what} for "{on}", which it is not about. {suggest(on, experiment.data)}')
    for on in experiment.data:
        if on not in plan.data:
            raise PprsError(f'{where}: no data is called "{on}". {suggest(on, plan.data)}')
        _within(where, parse_stop, experiment.stop_for(on))
        if (experiment.match or experiment.draw == "gallery") and on not in plan.models:
            raise PprsError(f'{where}: it takes a model called "{on}". {suggest(on, plan.models)}')
        _check_samples(plan, experiment, on, where)
        decided = decided_radii(plan.rule(experiment, on))
        if experiment.draw in ("table", "sweep") and decided is not None and experiment.radius not in decided:
            raise PprsError(
                f"{where}: it is about radius {experiment.radius:g}, and on {on} images are decided at "
                f"{', '.join(f'{r:g}' for r in decided)} alone (stop). Write the same radius at both."
            )
        if not experiment.lines_for(on):
            raise PprsError(f"{where} has no lines for {on}")
        for line in experiment.lines_for(on):
            _check_line(plan, line, on, where)


def _check_samples(plan: Plan, experiment: Experiment, on: str, where: str) -> None:
    """Whether so many samples can decide anything, and under a Gaussian the radii that are asked for."""
    data = plan.data[on]
    try:
        made = Sampling(data.n0 or plan.n0, data.n or plan.n, plan.alpha, stop=plan.rule(experiment, on))
        if any(line.noise == "gaussian" for line in experiment.lines_for(on)):
            for sigma in experiment.sigmas.get(on, ()):
                check_reach(made, Gaussian(sigma), dim=1, num_classes=2)
    except PprsError as error:
        raise PprsError(f"{where}, on {on}: {error}") from error


def _at_least(least: int, values: Mapping[str, int | None]) -> None:
    for where, value in values.items():
        if value is not None and value < least:
            raise PprsError(f"{where} is {least} or more, not {value}")


def _check_line(plan: Plan, line: Line, data: str, where: str) -> None:
    if line.value is not None:
        _within(where, parse_partition, line.method.replace(VALUE, f"{line.value:g}"))
    elif line.method not in plan.methods:
        raise PprsError(f'{where}: no method is called "{line.method}". {suggest(line.method, plan.methods)}')
    if line.noise not in NOISES:
        raise PprsError(f'{where}: no noise is called "{line.noise}". {suggest(line.noise, NOISES)}')
    model = f"{data}-{line.kind}" if line.kind else data
    if model not in plan.models:
        raise PprsError(f'{where}: no model is called "{model}". {suggest(model, plan.models)}')


def _within(where: str, reader: Callable[[Any], object], text: object) -> None:
    try:
        reader(text)
    except PprsError as error:
        raise PprsError(f"{where}: {error}") from error
