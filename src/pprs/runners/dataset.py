"""Run any guarantee over a data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pprs.data import Selection
from pprs.errors import ConfigurationError, DamagedError, check_type, suggest
from pprs.model.forms import AnyModel
from pprs.runners.options import RunOptions
from pprs.runners.run import run_subject
from pprs.runs import Guarantee, Run


def run_dataset(
    guarantee: Guarantee[Any, Any],
    model: AnyModel,
    data: Any,
    *,
    settings: Mapping[str, Any] | None = None,
    images: Iterable[int] | Selection | None = None,
    split: str | None = None,
    classes: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    pixels: str = "network",
    adapted: str | Path | None = None,
    **options: Any,
) -> Run:
    """Answer the inputs of a data set with any guarantee, such as one of your own.

    Args:
        guarantee: What is promised about each input.
        model: The model, as for `certify_dataset`.
        data: The data, as for `certify_dataset`.
        settings: The guarantee's own settings, by name.
        images: Indices of the images. All images by default.
        split: Split of the data. By default test, else validation, else train.
        classes: File with the class names of the data, one per line, in the model's order.
        labels: Restrict the classifier to these labels of the model.
        pixels: "network" or "file", as for `certify_dataset`.
        adapted: File with an adaptation of the model.
        **options: How the run is made: `noise`, `partition`, `seed`, `out`, `runner`, `engine`, `device`, `batch_size`,
            `threads`, `autocast`, `channels_last`, `budget`, `target_error`, `progress` and `arithmetic`, as for
            `certify_dataset`. A guarantee without noise takes none of `noise`,
            `partition`, `seed` and `arithmetic`.

    Returns:
        The run, with the rows of all its images.

    Raises:
        ConfigurationError: If an argument is invalid, or if `out` holds a run of another kind or with other settings.
        PprsError: If no image could be answered.
    """
    check_type(guarantee, Guarantee, "guarantee", "an object of your class, not the class")
    chosen, own = RunOptions.of(**options), dict(settings or {})
    chosen.check(guarantee)
    _check_own(guarantee, own)
    subject = guarantee.load(
        model, data, split=split, classes=classes, labels=labels, images=images, pixels=pixels, adapted=adapted
    )
    return run_subject(guarantee, subject, own, chosen)


def _check_own(guarantee: Guarantee[Any, Any], own: Mapping[str, Any]) -> None:
    """Reject settings that the guarantee does not have, or that no run of it could have."""
    known, texts = guarantee.settings.own_names(), guarantee.settings.texts
    if unknown := sorted(own.keys() - set(known)):
        raise ConfigurationError(
            f'{guarantee.noun} has no setting "{unknown[0]}". {suggest(unknown[0], known)}', parameter="settings"
        )
    keys = {field: key for key, field in texts.items()}
    try:
        guarantee.settings.from_dict(json.loads(json.dumps({keys.get(name, name): own[name] for name in own})))
    except DamagedError as error:
        raise ConfigurationError(error.message.removesuffix(" The run is damaged."), parameter="settings") from error
    except TypeError as error:
        raise ConfigurationError(
            f"`settings` must be texts, numbers and lists ({error})", parameter="settings"
        ) from error
