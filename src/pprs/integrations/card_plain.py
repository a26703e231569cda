"""What a model card says about runs of a guarantee that has no section of its own in it: claims, numbers, settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pprs.errors import ConfigurationError
from pprs.inputs.domain import domain_of_any
from pprs.report.plain import make_table
from pprs.report.table import Table, escape_markdown
from pprs.runs import Run
from pprs.runs.guarantee import Metric, RunSummary
from pprs.runs.names import distinct_names
from pprs.smoothing.certificate import state_arithmetic

INTRODUCTION = "What `pprs` says about these runs, and what it depends on."


def list_facts(run: Run, summary: RunSummary) -> dict[str, Any]:
    """Return what a reader needs to know about the numbers of a run, besides its model and data."""
    settings, guarantee = run.settings, run.guarantee
    stored = settings.to_dict()
    names = {field: key for key, field in settings.texts.items()}
    shown = {settings.texts.get(key, key) for key in settings.exported}
    own = {names.get(name, name): stored[names.get(name, name)] for name in settings.own_names() if name in shown}
    drawn = {
        "noise": settings.noise_text, "partition": settings.partition_text,
        "arithmetic": settings.arithmetic + state_arithmetic(settings.arithmetic, settings.levels),
    }  # fmt: skip
    return {
        "promise": guarantee.promise or None,
        **(drawn if guarantee.is_sampled else {}),
        **own,
        "inputs": summary.inputs,
        "failed": len(summary.failures) or None,
    }


def summarise_run(run: Run) -> RunSummary:
    """Return what a run says as a whole, if its rows follow from its settings.

    Raises:
        ConfigurationError: If it has no rows.
        DamagedError: If a row does not follow.
    """
    check = run.guarantee.check_rows(run.iter_rows(), run.settings)
    check.refuse(run.path)
    if check.not_checked:
        raise ConfigurationError(
            f"{run.path} does not record all that its numbers follow from ({'; '.join(check.not_checked)}). Give the "
            "run itself, or rows exported as json."
        )
    summary: RunSummary = run.guarantee.summarise(run)
    if not summary.inputs:
        raise ConfigurationError(f"{run.path} has no rows yet, so there is nothing to state")
    return summary


def to_result(run: Run, summary: RunSummary, name: str, facts: Mapping[str, Any], tasks: Mapping[Any, str]) -> Any:
    """Return the entry of a run in `model-index`. `tasks` are the hub's words for what a network does."""
    domain = domain_of_any(getattr(row, "shape", None) for row in run.iter_rows())
    dataset = {"name": facts["data"], "type": facts["data"]}
    return {
        "task": {"type": run.guarantee.task or tasks[domain], "name": run.guarantee.noun.partition(" ")[2]},
        "dataset": dataset | ({} if run.settings.split is None else {"split": run.settings.split}),
        "metrics": [
            {
                "type": re.sub(r"\W+", "_", metric.name).strip("_"), "value": metric.value,
                "name": f"{metric.name} ({name}, {facts['verification'].partition(':')[0]})",
                "args": {**_describe_metric(metric), **facts},
            }
            for metric in summary.metrics
        ],
    }  # fmt: skip


def _describe_metric(metric: Metric) -> dict[str, Any]:
    found = {"low_95": metric.low, "high_95": metric.high, "unit": metric.unit or None}
    return {name: value for name, value in found.items() if value is not None}


def name_runs(runs: Sequence[Run]) -> list[str]:
    """Return names that distinguish runs, without the folders of this machine."""
    return distinct_names([run.settings for run in runs], [run.path for run in runs])


def to_markdown(
    title: str, names: Sequence[str], summaries: Sequence[RunSummary], facts: Sequence[Mapping[str, Any]]
) -> str:
    """Return the section on runs of one kind."""
    keys = list(dict.fromkeys(key for fact in facts for key in fact))
    names = [escape_markdown(name) for name in names]
    settings = [(key.replace("_", " "), *(escape_markdown(f"{fact.get(key, '–')}") for fact in facts)) for key in keys]
    claims = [
        f"- {name}: {escape_markdown(claim)}"
        for name, summary in zip(names, summaries, strict=True)
        for claim in summary.claims
    ]
    checked = [
        f"- {name}: {escape_markdown(fact['verification'])}" if fact["verification"].startswith("verified")
        else f"- {name}: **not verified**"
        for name, fact in zip(names, facts, strict=True)
    ]  # fmt: skip
    return "\n".join([
        f"## {title}",
        "",
        INTRODUCTION,
        "",
        make_table(names, summaries).to_markdown(),
        *claims,
        *checked,
        "",
        Table(("setting", *names), tuple(settings)).to_markdown(),
        "`pprs verify RUN --replay 10` answers inputs again, and the run digest names the run that the numbers are "
        "from.",
    ])  # fmt: skip
