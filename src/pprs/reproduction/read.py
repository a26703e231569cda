"""Read a plan from its file and check it, so that mistakes are reported before anything is trained or certified."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pprs._support.checks import validate
from pprs.adaptation import BUDGET, METHODS
from pprs.dither.choice import as_estimate
from pprs.dither.estimators import is_estimator
from pprs.dither.thresholds import Dither, is_dither
from pprs.errors import PprsError, suggest
from pprs.inputs.domain import DOMAINS, IMAGE
from pprs.model.resnet import ARCHITECTURES
from pprs.noise import NOISES, Gaussian
from pprs.partition import parse_partition
from pprs.reproduction.former_rules import PRESENT, RULES
from pprs.reproduction.plan import VALUE, Data, Experiment, Line, Method, ModelSpec, ReproductionPlan, noise_at
from pprs.reproduction.tables import NORMS
from pprs.runners import parse_budget
from pprs.runs.engine import ENGINES
from pprs.smoothing.sampling import Sampling, check_radii_attainable, decided_radii, parse_stop_rule

PLANS = {quick: Path(__file__).with_name(name) for quick, name in ((False, "paper.toml"), (True, "quick.toml"))}
COUNTED = "counted"
TOP = "top level"  # how messages call the file's top level
KINDS = ("table", "curves", "sweep", "gallery", "adaptation", "gains", COUNTED)


def read_plan(path: Path | None = None, *, quick: bool = False) -> ReproductionPlan:
    """Read the plan in this file, by default the paper's plan or the quick one."""
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
    """How many training images, and samples of each, are used to choose among several partitions."""

    images: int
    samples: int


@dataclass(frozen=True)
class _Noises:
    """The sigmas of a model that is made once for each of them."""

    noises: tuple[float, ...]


@dataclass(frozen=True)
class _File:
    """The top level of the file. Its tables are validated one by one."""

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
    rules: str = PRESENT


def _plan(content: dict[str, Any]) -> ReproductionPlan:
    top = validate(_File, content, TOP)
    choose = validate(_Choice, top.choose, "choose")
    return ReproductionPlan(
        top.n0,
        top.n,
        top.alpha,
        top.seed,
        choose.images,
        choose.samples,
        top.stop,
        {name: validate(Data, values, f"data {name}") for name, values in top.data.items()},
        _models(top.model),
        {name: validate(Method, values, f"method {name}") for name, values in top.method.items()},
        {
            name: validate(Experiment, {**values, "name": name}, f"experiment {name}")
            for name, values in top.experiment.items()
        },
        top.rules,
    )


def _models(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, ModelSpec]:
    """The models of a plan. A table with several `noises` stands for one model for each of them, called NAME-SIGMA."""
    models = {}
    for name, values in tables.items():
        one = {key: value for key, value in values.items() if key != "noises"}
        noises = validate(_Noises, {"noises": values["noises"]}, f"model {name}").noises if "noises" in values else ()
        for sigma in noises:
            models[f"{name}-{sigma:g}"] = validate(ModelSpec, {**one, "noise": sigma}, f"model {name}")
        if not noises:
            models[name] = validate(ModelSpec, one, f"model {name}")
    return models


def _check(plan: ReproductionPlan) -> None:
    """Raise an error for anything that would fail later."""
    Sampling(plan.n0, plan.n, plan.alpha)  # checks its arguments
    _at_least(1, {"choose: images": plan.choose_images, "choose: samples": plan.choose_samples})
    _at_least(0, {"seed": plan.seed})
    if plan.rules not in RULES:
        raise PprsError(f'unknown rules "{plan.rules}". {suggest(plan.rules, RULES)}')
    for name, method in plan.methods.items():
        for text in (method.partition, *method.best_of):
            _check_text(f"method {name}", as_estimate if is_estimator(text) else parse_partition, text)
    _check_text(TOP, parse_stop_rule, plan.stop)
    for name, data in plan.data.items():
        where = f"data {name}"
        _check_text(where, parse_stop_rule, data.stop)
        if data.domain not in DOMAINS:
            raise PprsError(f'{where}: unknown domain "{data.domain}". {suggest(data.domain, DOMAINS)}')
        sizes = {"images": data.images, "stride": data.stride, "n0": data.n0, "n": data.n}
        _at_least(1, {f"{where}: {word}": value for word, value in sizes.items()})
        _at_least(2, {f"{where}: labels_at_a_time": data.labels_at_a_time})
    for name, model in plan.models.items():
        _check_model(plan, model, f"model {name}")
    for name, experiment in plan.experiments.items():
        _check_experiment(plan, experiment, f"experiment {name}")


def _check_model(plan: ReproductionPlan, model: ModelSpec, where: str) -> None:
    _check_text(where, as_estimate if is_dither(model.kind) else parse_partition, model.partition)
    if model.of is not None:
        _check_adaptation(plan, model, where)
    elif model.source is None and model.data is None:
        raise PprsError(f'{where} has neither a "source" nor "data" to train on')
    if model.data is not None and model.data not in plan.data:
        raise PprsError(f'{where}: unknown data set "{model.data}". {suggest(model.data, plan.data)}')
    if model.source is None and model.arch not in ARCHITECTURES:
        raise PprsError(f'{where}: unknown architecture "{model.arch}". {suggest(model.arch, ARCHITECTURES)}')
    if model.engine not in ENGINES:
        raise PprsError(f'{where}: unknown engine "{model.engine}". {suggest(model.engine, ENGINES)}')
    _at_least(1, {f"{where}: epochs": model.epochs, f"{where}: width": model.width})
    _at_least(2, {f"{where}: batch_size": model.batch_size})
    _at_least(0, {f"{where}: shift": model.shift})
    if model.noise is not None and model.noise <= 0:
        raise PprsError(f"{where}: noise is a sigma and must be above 0, not {model.noise:g}")
    if model.noise is not None:
        _check_noise(model.kind or Gaussian.name, (model.noise,), where)


def _check_adaptation(plan: ReproductionPlan, model: ModelSpec, where: str) -> None:
    if model.of not in plan.models:
        raise PprsError(f'{where}: "of" is unknown model "{model.of}". {suggest(str(model.of), plan.models)}')
    if plan.models[str(model.of)].of is not None:
        raise PprsError(f'{where}: "of" is {model.of}, which is adapted itself')
    if model.adapt not in METHODS:
        raise PprsError(f'{where}: unknown method "{model.adapt}" to adapt. {suggest(str(model.adapt), METHODS)}')
    if model.noise is None:
        raise PprsError(f'{where} needs the "noise" to which it is adapted')
    _check_text(where, parse_budget, model.budget or BUDGET)


def _check_experiment(plan: ReproductionPlan, experiment: Experiment, where: str) -> None:
    rules = experiment.stop if isinstance(experiment.stop, Mapping) else {}
    if experiment.draw not in KINDS:
        raise PprsError(f'{where}: cannot draw "{experiment.draw}". {suggest(experiment.draw, KINDS)}')
    if not experiment.data:
        raise PprsError(f'{where} has no "sigmas" (or "match") for any data set')
    if experiment.match and "rs" not in plan.methods:
        raise PprsError(f'{where}: matching the accuracy of plain smoothing requires a method "rs"')
    if any(not sigmas or min(sigmas) <= 0 for sigmas in experiment.sigmas.values()):
        raise PprsError(f"{where}: each data set needs at least one sigma, and all must be above 0")
    if any(not 1 <= len(numbers) <= 3 for methods in experiment.paper.values() for numbers in methods.values()):
        raise PprsError(
            f"{where}: the paper's numbers are 1 to 3 per method: accuracy, F measure and number of superpixels"
        )
    if any(len(numbers) != len(NORMS) for others in experiment.published.values() for numbers in others.values()):
        raise PprsError(f"{where}: published numbers are {len(NORMS)} per method, at L1 {', '.join(map(str, NORMS))}")
    _at_least(1, {f"{where}: images": experiment.images})
    by_data = {"more": experiment.more, "stop": rules, "values": experiment.values, "paper": experiment.paper}
    by_data |= {"published": experiment.published}
    for key, name in [(key, name) for key, values in by_data.items() for name in values]:
        if name not in experiment.data:
            raise PprsError(
                f'{where}: "{key}" names "{name}", which has no sigmas in this experiment. '
                f"{suggest(name, experiment.data)}"
            )
    for data in experiment.data:
        if data not in plan.data:
            raise PprsError(f'{where}: unknown data set "{data}". {suggest(data, plan.data)}')
    _check_kinds(plan, experiment, where)
    for data in experiment.data:
        _check_text(where, parse_stop_rule, experiment.stop_for(data))
        if (experiment.match or experiment.draw == "gallery") and data not in plan.models:
            raise PprsError(f'{where}: requires a model "{data}". {suggest(data, plan.models)}')
        _check_samples(plan, experiment, data, where)
        decided = decided_radii(plan.stop_rule(experiment, data))
        if (
            experiment.draw in ("table", "sweep", "adaptation")
            and decided is not None
            and experiment.radius not in decided
        ):
            raise PprsError(
                f"{where}: its radius is {experiment.radius:g}, but its stop rule on {data} decides images only at "
                f"{', '.join(f'{r:g}' for r in decided)}. Use the same radius for both."
            )
        if not experiment.lines_for(data):
            raise PprsError(f"{where} has no lines for {data}")
        for line in experiment.lines_for(data):
            _check_line(plan, line, data, experiment.sigmas.get(data, (0.0,)), where)


def _check_kinds(plan: ReproductionPlan, experiment: Experiment, where: str) -> None:
    """Check that votes are counted where rows of counted votes are expected, and nowhere else."""
    for data in experiment.data:
        for line in experiment.lines_for(data):
            if line.is_counted != (experiment.draw == COUNTED):
                raise PprsError(
                    f'{where}: "{COUNTED}" draws lines behind thresholds, and only these: see {line.method}'
                )
            if line.is_counted and plan.data[data].domain != IMAGE.name:
                raise PprsError(f"{where}: {data} are signals, and lines behind thresholds are drawn of images only")
            method = plan.methods.get(line.method)
            if line.is_counted and (method is None or method.best_of):
                raise PprsError(
                    f"{where}: {line.method} is chosen by samples of noise, and behind thresholds there is none"
                )
    others = [other for other in plan.experiments.values() if (other.draw == COUNTED) != (experiment.draw == COUNTED)]
    for data in {*experiment.data} & {data for other in others for data in other.data}:
        raise PprsError(f"{where}: {data} has lines behind thresholds and others: name the data set twice")


def _check_samples(plan: ReproductionPlan, experiment: Experiment, data: str, where: str) -> None:
    """Check that the samples can certify anything and, for Gaussian noise, the radii of the stop rule."""
    spec = plan.data[data]
    try:
        sampling = Sampling(spec.n0 or plan.n0, spec.n or plan.n, plan.alpha, stop=plan.stop_rule(experiment, data))
        if any(line.noise == "gaussian" for line in experiment.lines_for(data)):
            for sigma in experiment.sigmas.get(data, ()):
                check_radii_attainable(sampling, Gaussian(sigma), dim=1, num_classes=2)
    except PprsError as error:
        raise PprsError(f"{where}, on {data}: {error}") from error


def _at_least(least: int, values: Mapping[str, int | None]) -> None:
    for where, value in values.items():
        if value is not None and value < least:
            raise PprsError(f"{where} must be at least {least}, not {value}")


def _check_line(plan: ReproductionPlan, line: Line, data: str, sigmas: tuple[float, ...], where: str) -> None:
    if line.value is not None:
        _check_text(where, parse_partition, line.method.replace(VALUE, f"{line.value:g}"))
    elif line.method not in plan.methods:
        raise PprsError(f'{where}: unknown method "{line.method}". {suggest(line.method, plan.methods)}')
    _check_noise(line.noise, sigmas, where)
    for sigma in sigmas:
        if (model := plan.model_name(data, line, sigma)) not in plan.models:
            raise PprsError(f'{where}: unknown model "{model}". {suggest(model, plan.models)}')


def _check_noise(text: str, sigmas: tuple[float, ...], where: str) -> None:
    kind = text.partition(":")[0]
    if kind not in (*NOISES, Dither.name):
        raise PprsError(f'{where}: unknown noise "{text}". {suggest(kind, (*NOISES, Dither.name))}')
    for levels in sigmas if is_dither(text) else ():
        _check_text(where, lambda value: noise_at(text, value), levels)


def _check_text(where: str, parse: Callable[[Any], object], text: object) -> None:
    try:
        parse(text)
    except PprsError as error:
        raise PprsError(f"{where}: {error}") from error
