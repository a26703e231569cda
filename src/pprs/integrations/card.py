"""The certified robustness of a model as a section of its model card on the Hugging Face hub."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pprs._support.extras import extra
from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.inputs.domain import IMAGE, SIGNAL, Domain, domain_of_any
from pprs.integrations import card_plain
from pprs.metrics import Summary, summarize, usual_radii
from pprs.model.forms import AnyModel
from pprs.progress import Progress
from pprs.report.table import Table, escape_markdown, format_percent, format_radius
from pprs.runs import Run, RunFrame, describe_chance, digest_run, list_runs, open_run, read_frames
from pprs.runs.provenance import CERTIFY
from pprs.smoothing.certificate import state_arithmetic
from pprs.verification import Verification, verify_run

with extra():
    import yaml
    from huggingface_hub import HfApi

TASKS = {IMAGE: "image-classification", SIGNAL: "time-series-classification"}  # in the hub's words
BEGIN, END = "<!-- pprs: begin -->", "<!-- pprs: end -->"  # around the section, so that it can be replaced
README, DIGEST, REPLAYED = "README.md", "run_digest", "replayed"
Part = tuple[str, list[Any]]  # a section, and the results of its runs
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.M | re.S)
_SECTION = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}\n?", re.S)
INTRODUCTION = """\
{one} counts at radius r if it is certified with the correct label, and no change of L2 norm up to r can alter that
label. The claim is about the smoothed classifier: the majority vote of the model under noise. It is wrong with
probability at most alpha, separately for each {name}. ACR is the average certified radius."""


@dataclass(frozen=True)
class Card:
    """What a model card says about certified robustness.

    Attributes:
        model: The name of the model.
        section: The section as Markdown.
        results: The entries of `model-index`, one for each run.
    """

    model: str
    section: str
    results: tuple[Mapping[str, Any], ...]

    def add_to(self, content: str) -> str:
        """Return a model card with this section and these results, in place of those of an earlier card.

        Args:
            content: The card so far, which may be empty. Everything else in it is kept.

        Raises:
            PprsError: If its metadata are not valid.
        """
        front = _FRONT.match(content)
        metadata = _parse_metadata("" if front is None else front[1])
        text = content if front is None else content[front.end() :]
        others = [entry for entry in metadata.get("model-index") or [] if entry.get("name") != self.model]
        own = [entry for entry in metadata.get("model-index") or [] if entry.get("name") == self.model]
        kept = [result for entry in own for result in entry.get("results") or [] if not _is_certified(result)]
        metadata["model-index"] = [*others, {"name": self.model, "results": [*kept, *map(dict, self.results)]}]
        section = f"{BEGIN}\n{self.section}\n{END}\n"
        if _SECTION.search(text):
            text = _SECTION.sub(lambda match: section, text, count=1)
        else:
            text = f"{text.rstrip()}\n\n{section}".lstrip("\n")
        return f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n\n{text.lstrip()}"


def make_card(
    runs: Sequence[Run | str | Path],
    *,
    radii: Sequence[float] | None = None,
    replay: int = 0,
    model: AnyModel | None = None,
    adapted: str | Path | None = None,
    data: Any = None,
    classes: str | Path | None = None,
    denoiser: str | Path | None = None,
    seed: int | None = None,
    progress: bool | Progress = False,
) -> Card:
    """Describe the certified robustness of a model.

    A run is marked as not verified unless votes are drawn again from its model and data with `replay`.

    Args:
        runs: Runs of one model, their folders or urls, or rows exported from them as json.
        radii: Radii at which certified accuracies are given; a few round ones by default.
        replay: The number of rows of each run, chosen at random, whose votes are drawn again.
        model: The model, its adaptation, the data, the class names of the data and the denoiser, as for `verify_run`.
        adapted: See `model`.
        data: See `model`.
        classes: See `model`.
        denoiser: See `model`.
        seed: The seed of an earlier choice of rows, to repeat it.
        progress: Whether to show progress bars.

    Raises:
        ConfigurationError: If the runs are of different models, or if one has no labels or does not record its
            settings.
        PprsError: If a run does not follow from its own votes, model or data.
    """
    given = {"model": model, "adapted": adapted, "data": data, "classes": classes, "denoiser": denoiser}
    verify = partial(verify_run, replay=replay, seed=seed, progress=progress, **given)
    paths = [run for source in runs for run in ([source] if isinstance(source, Run) else list_runs(source))]
    opened = [run if isinstance(run, Run) else open_run(run) for run in paths]
    by_kind: dict[str, list[Run]] = {}
    for run in opened:
        by_kind.setdefault(run.guarantee.name, []).append(run)
    for run in opened:
        _check_model(run, opened[0])
    parts = [
        _describe_certified(group, radii, partial(_verify, replay=replay, verify=verify))
        if kind == CERTIFY
        else _describe_others(group, partial(_verify, replay=replay, verify=verify))
        for kind, group in by_kind.items()
    ]
    section = "\n\n".join(text for text, _ in parts)
    results = tuple(result for _, own in parts for result in own)
    return Card(Path(_name(opened[0].settings.model, "model")).stem, section, results)


def _describe_certified(
    runs: Sequence[Run], radii: Sequence[float] | None, verify: Callable[[Run], Mapping[str, Any]]
) -> Part:
    """Return the section and the results of certification runs."""
    frames = read_frames(runs)
    for run, frame in zip(runs, frames, strict=True):
        _check_run(run, frame)
    at = [float(radius) for radius in (usual_radii(frames) if radii is None else radii)]
    summaries = [summarize(frame, at) for frame in frames]
    facts = [_list_facts(run, frame, verify(run)) for run, frame in zip(runs, frames, strict=True)]
    results = [
        _to_result(run, frame, summary, at, fact)
        for run, frame, summary, fact in zip(runs, frames, summaries, facts, strict=True)
    ]
    return _to_markdown(summaries, at, facts, domain_of_any(frames[0].space.shapes)), results


def _describe_others(runs: Sequence[Run], verify: Callable[[Run], Mapping[str, Any]]) -> Part:
    """Return the section and the results of runs of another kind, from what their guarantee says of them."""
    names, summaries = card_plain.name_runs(runs), [card_plain.summarise_run(run) for run in runs]
    facts = [
        _drop_unknown({**card_plain.list_facts(run, summary), **_list_sources(run), **verify(run)})
        for run, summary in zip(runs, summaries, strict=True)
    ]
    results = [
        card_plain.to_result(run, summary, name, fact, TASKS)
        for run, summary, name, fact in zip(runs, summaries, names, facts, strict=True)
    ]
    noun = runs[0].guarantee.noun.partition(" ")[2]
    title = f"Promised: {runs[0].guarantee.promise or noun}"
    return card_plain.to_markdown(title, names, summaries, facts), results


def push_card(card: Card, repo: str) -> str:
    """Add the card to the README of a model on the Hugging Face hub, with the token of the user.

    Returns:
        The url of the commit.

    Raises:
        PprsError: If the hub refuses it, for example because there is no token.
    """
    hub = HfApi()
    try:
        content = ""
        if hub.file_exists(repo, README):
            content = Path(str(hub.hf_hub_download(repo, README))).read_text(encoding="utf-8")
        commit = hub.upload_file(
            path_or_fileobj=card.add_to(content).encode(), path_in_repo=README, repo_id=repo,
            commit_message="Add certified robustness",
        )  # fmt: skip
    except (OSError, ValueError) as error:  # what the hub's errors derive from
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PprsError(
            f"the card was not pushed to {repo} ({reason}). Check that the model exists there, and log in with `hf "
            "auth login` or set HF_TOKEN.",
            parameter="push",
        ) from error
    return str(commit)


def _parse_metadata(text: str) -> dict[str, Any]:
    try:
        metadata = yaml.safe_load(text) or {}
        if not isinstance(metadata, dict) or not all(isinstance(e, dict) for e in metadata.get("model-index") or []):
            raise ValueError("they are not a table of keys and values")
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise PprsError(f"the metadata of the model card are not valid ({error}). Correct them first.") from error
    return metadata


def _is_certified(result: Mapping[str, Any]) -> bool:
    """Return whether this package has written the result."""
    return any(DIGEST in (metric.get("args") or {}) for metric in result.get("metrics") or [])


def _check_model(run: Run, first: Run) -> None:
    if run.settings.model_digest != first.settings.model_digest:
        raise ConfigurationError(f"{first.path} and {run.path} are of different models. Write one card for each model.")


def _check_run(run: Run, frame: RunFrame) -> None:
    settings = run.settings
    if None in (settings.noise_text, settings.partition_text, settings.n, settings.alpha):
        raise ConfigurationError(
            f"{run.path} does not record its noise, partition, n and alpha, which a card states. Give the run itself, "
            "or rows exported as json."
        )
    if not frame.labelled:
        raise ConfigurationError(f"the images of {run.path} have no true labels, so there is no accuracy to state")


def _verify(run: Run, *, replay: int, verify: Callable[[Run], Verification]) -> dict[str, Any]:
    """Return whether the run is verified, what was compared, and what a forger's chances were."""
    what, _, how = run.guarantee.replayed.partition(":")
    done = how.strip().removesuffix(" and compared")
    if replay < 1:
        return {"verification": f"not verified: no {what} were {done} from the model and the data"}
    found = verify(run)
    if not found.ok:
        raise DamagedError(f"{run.path} cannot be verified, so there is no card: {found.mismatches[0]}")
    drawn = len(found.replayed)
    if drawn < min(replay, found.total):
        reasons = [text for text in found.not_checked if text.startswith((what, "model"))]
        return {"verification": f"not verified: {'; '.join(reasons)}"}
    return {
        "verification": f"verified: the {what} of {drawn} of {found.total} {found.unit}, chosen at random, were "
        f"{done}, and are the same",
        REPLAYED: f"{drawn} of {found.total} {found.unit}",
        "replay_seed": found.seed,
        "forger": describe_chance(found.total, drawn, found.unit),
    }


def _list_facts(run: Run, frame: RunFrame, verification: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a reader needs to know about the numbers of a run."""
    settings = run.settings
    facts = {
        "norm": "L2",
        "noise": settings.noise_text,
        "sigma": settings.noise.sigma,
        "partition": settings.partition_text,
        "n0": settings.n0,
        "n": settings.n,
        "alpha": settings.alpha,
        "bound": settings.bound,
        "stop": settings.stop,
        "arithmetic": settings.arithmetic + state_arithmetic(settings.arithmetic, settings.levels),
        "radii_measure": f"changes of {str(frame.space).removeprefix('your ')}",
        "labels": settings.label_choice or None,
        domain_of_any(frame.space.shapes).plural: len(frame),
        "failed": int(frame.failed.sum()) or None,
        "undecided": int(frame.undecided.sum()) or None,
        **_list_sources(run),
        **verification,
    }
    return _drop_unknown(facts)


def _list_sources(run: Run) -> dict[str, Any]:
    """Return what names the data, the model and the run."""
    settings = run.settings
    return {
        "data": _name(settings.data, "unknown"),
        "split": settings.split,
        "data_digest": settings.data_fingerprint,
        "model_digest": settings.model_digest,
        "seed": settings.seed,
        "engine": settings.engine,
        DIGEST: digest_run(run),
    }


def _drop_unknown(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _name(text: str | None, unknown: str) -> str:
    """Return a model or data set without the folders of this machine."""
    return unknown if text is None else Path(text).name if Path(text).is_absolute() else text


def _to_result(
    run: Run, frame: RunFrame, summary: Summary, radii: Sequence[float], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entry of a run in `model-index`."""
    named = [
        ("certified_accuracy", f"certified accuracy at L2 radius {radius:g}", accuracy, {"radius": radius})
        for radius, accuracy in zip(radii, summary.accuracy, strict=True)
    ]
    named.append(("average_certified_radius", "average certified L2 radius", summary.average_radius, {}))
    name = f"{summary.full_name}, {facts['verification'].partition(':')[0]}"
    dataset = {"name": facts["data"], "type": facts["data"]}
    return {
        "task": {"type": TASKS[domain_of_any(frame.space.shapes)], "name": "Certified classification"},
        "dataset": dataset | ({} if run.settings.split is None else {"split": run.settings.split}),
        "metrics": [
            {"type": kind, "value": value, "name": f"{text} ({name})", "args": {**radius, **facts}}
            for kind, text, value, radius in named
            if not math.isnan(value)
        ],
    }


def _to_markdown(
    summaries: Sequence[Summary], radii: Sequence[float], facts: Sequence[Mapping[str, Any]], inputs: Domain
) -> str:
    heads = ("method", *(f"accuracy at {radius:g}" for radius in radii), "ACR", inputs.plural, "votes drawn again")
    lines = [
        (
            escape_markdown(summary.name), *(format_percent(accuracy) for accuracy in summary.accuracy),
            format_radius(summary.average_radius), str(summary.images),
            fact.get(REPLAYED, "**not verified**"),
        )
        for summary, fact in zip(summaries, facts, strict=True)
    ]  # fmt: skip
    names = list(dict.fromkeys(name for fact in facts for name in fact))
    settings = [
        (name.replace("_", " "), *(escape_markdown(f"{fact.get(name, '–')}") for fact in facts)) for name in names
    ]
    return "\n".join([
        "## Certified robustness",
        "",
        INTRODUCTION.format(one=inputs.one.capitalize(), name=inputs.name),
        "",
        Table(heads, tuple(lines)).to_markdown(),
        Table(("setting", *(escape_markdown(summary.name) for summary in summaries)), tuple(settings)).to_markdown(),
        "`pprs verify RUN --replay 10` draws votes again, and the run digest names the run that the numbers are from.",
    ])  # fmt: skip


__all__ = ["Card", "make_card", "push_card"]
