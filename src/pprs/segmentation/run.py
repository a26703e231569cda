"""Certify the label maps of a data set, in a run that can be interrupted and resumed."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pprs._threads import get_threads, keep_memory
from pprs.consistency import Watch
from pprs.data import Selection, check_indices
from pprs.data.thumbnail import encode_thumbnail
from pprs.engine import EngineOptions, choose_engine
from pprs.errors import ConfigurationError, PprsError, check_integer, check_type, describe_error
from pprs.memory import check_memory
from pprs.model import Model
from pprs.model.identity import identify
from pprs.noise import Noise, QuantisedImage, digest_image, parse_noise
from pprs.partition import Partition, parse_partition
from pprs.progress import Progress, as_progress, stage
from pprs.runners import Held, Local
from pprs.runs.session import report_adaptation
from pprs.segmentation.certificate import SegmentationCertificate
from pprs.segmentation.data import as_masked_set, open_masked
from pprs.segmentation.holm import check_attainable
from pprs.segmentation.masks import MaskedExample, MaskedSet, Prepared
from pprs.segmentation.segmenter import SegmentationSampling, SmoothedSegmenter, split_alpha
from pprs.segmentation.store import (
    DATABASE,
    MAX_PICTURES,
    SegmentationRun,
    SegmentationSettings,
    SegmentationWriter,
)
from pprs.task import Task, find_usable, open_model
from pprs.voting import choose_arithmetic, fix_levels, prepare_image, trial_inputs

CLASSIFIES = "{} labels the whole image, and this is for networks that label every pixel. Use `pprs certify`."
MAX_PICTURE_SIDE = 512  # of an image that is stored for the report


def segment_dataset(
    model: str | Model | torch.nn.Module,
    data: Any,
    *,
    noise: Noise | str,
    partition: Partition | str | None = None,
    sampling: SegmentationSampling | None = None,
    images: Iterable[int] | Selection | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool | Progress = True,
    split: str | None = None,
    classes: str | Path | None = None,
    adapted: str | Path | None = None,
    engine: str = "auto",
    device: str = "cpu",
    batch_size: int | None = None,
    threads: int | None = None,
    arithmetic: str = "auto",
) -> SegmentationRun:
    """Certify the label maps that a segmentation network gives to the images of a data set.

    Each image gets a label for every pixel at which no perturbation up to the radius changes it, and abstains at the
    others. Images that raise an error are recorded as failures.

    Args:
        model: Text as for `load_model`, a `pprs.Model`, or a `torch.nn.Module` that takes images in [0, 1].
        data: Text as for `open_masked`, a `MaskedSet`, or a pair `(images, masks)` of arrays.
        noise: The noise, as an object or as text such as "gaussian:sigma=0.25".
        partition: The partition, as an object or as text. None means plain smoothing.
        sampling: Sample sizes, share, failure probability and groups. `SegmentationSampling()` by default.
        images: Indices of the images to certify. All images by default.
        seed: Random seed.
        out: Folder of the run. Repeating the call resumes the run, also after Ctrl-C or a crash. Without `out`, the
            rows are kept only as long as the returned run.
        progress: True shows a progress bar. Any object with the methods of `pprs.progress.Progress` is accepted.
        split: Split of the data. By default test, else validation, else train.
        classes: File with the class names of the data, one per line, in the order of the labels.
        adapted: File with an adaptation of the model, written by `adapt`.
        engine: "auto", "torch" or "onnxruntime".
        device: Torch device.
        batch_size: Noisy samples per batch. Affects speed only.
        threads: CPU threads. Affects speed only.
        arithmetic: "auto", "exact", "8-bit", "16-bit", "rounded" or "real", as for `certify_dataset`.

    Returns:
        The run, with the rows of all its images.

    Raises:
        ConfigurationError: If an argument or a mask is invalid, or if `out` holds a run with other settings.
        PprsError: If no image could be certified.
    """
    noise = parse_noise(noise) if isinstance(noise, str) else noise
    partition = parse_partition(partition) if isinstance(partition, str) else partition
    check_type(noise, Noise, "noise", 'pprs.Gaussian(0.25) or "gaussian:sigma=0.25"')
    check_type(partition, Partition | None, "partition", 'pprs.Slic() or "slic:n_segments=100"')
    check_type(sampling, SegmentationSampling | None, "sampling", "SegmentationSampling(tau=0.75)")
    sampling, seed = sampling or SegmentationSampling(), check_integer(seed, "seed")
    options = EngineOptions(engine, device, batch_size, threads)
    device = Local().check_device(options.device)
    choose_arithmetic(arithmetic, noise)
    reporter = as_progress(progress)
    subject = open_subject(model, data, images=images, split=split, classes=classes, adapted=adapted)
    net, prepared, indices = subject.model, subject.data, subject.images
    assert isinstance(prepared, Prepared)
    assert net.num_classes is not None
    check_masks(prepared, indices, reporter)
    keep_memory()
    scratch = None
    if out is None:
        scratch = tempfile.TemporaryDirectory(prefix="pprs-")
    folder = Path(scratch.name) / "run" if scratch is not None else Path(str(out))
    recorded = SegmentationRun(folder).settings if DATABASE.is_in(folder) else None
    sample = find_usable(prepared, indices)
    arithmetic = _fix_arithmetic(prepared, sample.image, noise, arithmetic, recorded)
    image = prepare_image(sample.image, noise, arithmetic)
    partition = None if partition is None else partition.bind_files().resolve(noise.sigma, tuple(image.shape))
    _check_first(image, noise, sampling)
    _report_adaptation(subject, noise, partition, reporter)
    inputs = trial_inputs(image, noise, partition, seed, sample.index)
    if recorded is not None and options.engine == "auto":
        options = replace(options, engine=recorded.engine)
    choice = choose_engine(
        net, inputs, engine=options.engine, device=device, samples=(sampling.n0 + sampling.n) * len(indices),
        message=reporter.message,
    )  # fmt: skip
    segmenter = SmoothedSegmenter(
        choice.model.module, net.num_classes, noise, partition, seed=seed, batch_size=options.batch_size,
        threads=options.threads, device=device, arithmetic=arithmetic,
    )  # fmt: skip
    segmenter.check_model(sample.image, index=sample.index)
    watch = Watch(segmenter.votes, inputs)
    settings = SegmentationSettings(
        **describe_subject(subject),
        model_parts=identify(net, engine=choice.engine),
        noise=str(noise),
        partition=str(partition or "none"),
        tau=sampling.tau,
        n0=sampling.n0,
        n=sampling.n,
        alpha=sampling.alpha,
        groups=str(sampling.groups or "none"),
        seed=seed,
        engine=choice.engine,
        device=device,
        arithmetic=arithmetic,
    )
    with SegmentationWriter(folder, settings) as writer:
        _certify(segmenter, watch, prepared, indices, sampling, writer, options, reporter)
    run = SegmentationRun(folder, keep=scratch)
    if not set(indices) & set(run.completed()):
        raise PprsError(f"no image could be certified. {describe_failures(run.failures())}")
    return run


def open_subject(
    model: str | Model | torch.nn.Module,
    data: Any,
    *,
    images: Iterable[int] | Selection | None = None,
    split: str | None = None,
    classes: str | Path | None = None,
    adapted: str | Path | None = None,
) -> Task:
    """Open a network and the images with masks that it labels, at its input size, and choose the images.

    Args:
        model: The network, as for `segment_dataset`.
        data: The images, as for `segment_dataset`.
        images: Indices of the images. All images by default.
        split: Split of the data.
        classes: File with the class names of the data.
        adapted: File with an adaptation of the network.

    Returns:
        The network with the number of its classes, and its images.
    """
    masked = _open_data(data, split, classes)
    indices = _choose_images(images, len(masked))
    net, text, num_classes = open_network(model, masked, indices, adapted)
    return Task(replace(net, num_classes=num_classes), Prepared(masked, net, num_classes), indices, None, text)


def describe_subject(subject: Task) -> dict[str, Any]:
    """Return the settings that follow from the network and the data."""
    net, data = subject.model, subject.data
    return {
        "model": subject.model_text or net.source,
        "model_digest": net.digest(),
        "data": data.source or "arrays",
        "split": data.split or "",
        "data_fingerprint": data.fingerprint(),
        "num_classes": subject.num_classes,
        "class_names": net.class_names or data.class_names or (),
    }


def _report_adaptation(task: Task, noise: Noise, partition: Partition | None, progress: Progress) -> None:
    """Warn if an adapted network is used with other noise, or for the images that it was adapted with."""
    report_adaptation(task, task.list_mismatches(noise, partition), progress)


def _open_data(data: Any, split: str | None, classes: str | Path | None) -> MaskedSet:
    if isinstance(data, str | Path):
        return open_masked(str(data), split=split, classes=None if classes is None else Path(classes))
    for name, value in (("split", split), ("classes", classes)):
        if value is not None:
            raise ConfigurationError(f"`{name}` applies only to data given as text", parameter=name)
    return as_masked_set(data)


def _choose_images(images: Iterable[int] | Selection | None, total: int) -> Sequence[int]:
    selection = Selection() if images is None else images
    return selection.of(total) if isinstance(selection, Selection) else check_indices(selection, total)


def open_network(
    model: str | Model | torch.nn.Module,
    data: MaskedSet,
    indices: Sequence[int],
    adapted: str | Path | None = None,
) -> tuple[Model, str | None, int]:
    """Return the network, the text that opens it again, and its number of classes."""
    net, text = open_model(model, adapted)
    if net.task == "classify":
        raise ConfigurationError(CLASSIFIES.format(net.source), parameter="model")
    count = net.num_classes if net.task == "segment" else None
    if count is None:
        count = _count_classes(net, find_usable(data, indices).image)
    names = data.class_names
    if names is not None and len(names) > count:
        raise ConfigurationError(
            f"the network has {count} classes and the data {len(names)}, so their labels do not match", parameter="data"
        )
    return net, text, count


def _count_classes(net: Model, image: torch.Tensor) -> int:
    """Return the number of classes that the network scores at a pixel."""
    with torch.inference_mode():
        net.module.eval()
        try:
            scores = net.module(net.prepare(image)[None].clone())
        except Exception as error:  # a user's model may raise anything
            raise PprsError(f"the model failed on an image of shape {tuple(image.shape)}: {error}") from error
    if isinstance(scores, torch.Tensor) and scores.ndim == 2:
        raise ConfigurationError(CLASSIFIES.format(net.source), parameter="model")
    if not isinstance(scores, torch.Tensor) or scores.ndim != 4:
        raise ConfigurationError(
            "the model must map images [B, C, H, W] to scores [B, num_classes, H, W]", parameter="model"
        )
    return int(scores.shape[1])


def check_masks(data: MaskedSet, indices: Sequence[int], progress: Progress) -> None:
    """Raise an error if a mask has another size than its image, or a label that the network does not have.

    A mask or image that cannot be read is left to the run, which records it as a failure.
    """
    with stage(progress, "check masks", len(indices), "images"):
        for index in indices:
            try:
                data.mask_of(index)
            except ConfigurationError:
                raise
            except PprsError:
                pass
            progress.advance(1)


def _fix_arithmetic(
    data: MaskedSet, image: torch.Tensor, noise: Noise, arithmetic: str, recorded: SegmentationSettings | None
) -> str:
    """Return the arithmetic of a run: its own if it is resumed, otherwise that of the first image of the data."""
    if recorded is not None and arithmetic == "auto":
        return recorded.arithmetic
    with contextlib.suppress(PprsError):
        image = find_usable(data, range(len(data))).image
    return fix_levels(image, noise, arithmetic)


def _check_first(image: torch.Tensor | QuantisedImage, noise: Noise, sampling: SegmentationSampling) -> None:
    """Raise an error before the run if its settings cannot certify a pixel of the first image."""
    quantisation = image.quantisation if isinstance(image, QuantisedImage) else None
    alpha, _ = split_alpha(quantisation, noise, image.numel(), sampling)
    if sampling.groups is None:
        check_attainable(image.shape[1] * image.shape[2], sampling.n, sampling.tau, alpha)


def _certify(
    segmenter: SmoothedSegmenter,
    watch: Watch,
    data: Prepared,
    indices: Sequence[int],
    sampling: SegmentationSampling,
    writer: SegmentationWriter,
    options: EngineOptions,
    progress: Progress,
) -> None:
    """Certify the images that a run still lacks."""
    done = SegmentationRun(writer.folder).completed()
    if done:
        count = sum(i in done for i in indices)
        progress.message(f"resuming: {count} of {len(indices)} images are done in {writer.folder}")
        _check_unchanged(segmenter, data, {i: done[i] for i in indices if i in done})
    todo = [i for i in indices if i not in done]
    stored, threads = len(done), options.threads or get_threads()

    def write(result: tuple[MaskedExample, SegmentationCertificate, float]) -> None:
        nonlocal stored
        example, certificate, seconds = result
        writer.write(example.index, certificate, None if example.mask is None else example.mask.numpy(), seconds)
        if stored < MAX_PICTURES and max(example.image.shape[1:]) <= MAX_PICTURE_SIDE:
            writer.write_picture(example.index, encode_thumbnail(example.image))
            stored += 1

    total = len(todo) * (sampling.n0 + sampling.n)
    with stage(progress, "segment", total, "samples"), Held(watch.confirm, write) as held:
        for position, index in enumerate(todo):
            began, note = time.perf_counter(), f"image {position + 1}/{len(todo)}"
            try:
                example = data.masked(index)
                check_memory(example.image, threads=threads, batch_size=options.batch_size)
                report = partial(progress.advance, note=note)
                certificate = segmenter.certify(example.image, sampling, index=index, on_samples=report)
            except ConfigurationError:
                raise
            except (PprsError, MemoryError) as error:
                failed = data.mask_alone(index)
                writer.write_failure(index, describe_error(error), None if failed is None else failed.numpy())
                continue
            held.add((example, certificate, time.perf_counter() - began))


def _check_unchanged(segmenter: SmoothedSegmenter, data: MaskedSet, digests: dict[int, str]) -> None:
    """Check that the images of existing rows are those that were certified."""
    for index, digest in digests.items():
        if digest != digest_image(segmenter.votes.quantise(data.image_of(index).float())):
            raise ConfigurationError(
                f"image {index} is not the one that was certified: its content has changed since. Nothing was changed. "
                "Restore the image, or give another `out`.",
                parameter="data",
            )


def describe_failures(failures: dict[int, str], most: int = 5) -> str:
    """List the images that failed, and why."""
    lines = [f"failed: {len(failures)} images, counted as abstained. Repeat to try again."]
    lines += [f"  image {index}: {error}" for index, error in list(failures.items())[:most]]
    return "\n".join(lines + ([f"  and {len(failures) - most} more"] if len(failures) > most else []))


__all__ = [
    "check_masks", "describe_failures", "describe_subject", "open_network", "open_subject", "segment_dataset",
]  # fmt: skip
