"""Short names for runs in tables and figures, with the settings that distinguish them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pprs._support.text import FILE, decode_file
from pprs.errors import PprsError
from pprs.model.overlay import split_adapted
from pprs.partition import PARTITIONS, Denoiser, split_text
from pprs.runs.provenance import Provenance

Words = Mapping[tuple[Any, ...], tuple[str, str]]  # key -> value, and its text in a name
OptionKey = tuple[int, int, str, str]  # part of the mean, link of the chain, option, name of the link


def method_name(settings: Provenance, path: str) -> str:
    """The name of a run in tables and figures: its partition without options, and whether its model is adapted.

    If the partition is unknown, the name is that of the file.

    >>> method_name(Provenance(partition_text="slic:n_segments=50,blur=3/soft:near=4+blur:size=3"), "runs/a")
    'slic/soft+blur'
    >>> method_name(Provenance(partition_text="none"), "runs/a"), method_name(Provenance(), "logs/cohen.tsv")
    ('RS', 'cohen')
    >>> method_name(Provenance(model="m.onnx+adapted:a.safetensors", partition_text="none"), "runs/a")
    'RS, adapted'
    """
    if settings.partition_text is None:
        return PurePath(path).stem if PurePath(path).suffix else PurePath(path).name
    adapted = "" if split_adapted(settings.model or "")[1] is None else ", adapted"
    if settings.partition_text.strip() == "none":
        return f"RS{adapted}"
    chains = ["/".join(name for name, _ in chain) for chain in _chains(settings.partition_text)]
    return "+".join(chains) + adapted


def distinct_names(settings: Sequence[Provenance], paths: Sequence[str]) -> list[str]:
    """The method names of runs, with options, noise, seed or path in brackets as needed to distinguish them.

    >>> def names(*runs):
    ...     settings = [Provenance(partition_text=p, noise_text=f"gaussian:sigma={s}", seed=i) for p, s, i in runs]
    ...     return distinct_names(settings, [f"runs/{i}" for i in range(len(runs))])
    >>> names(("none", 0.25, 0), ("slic:n_segments=50,blur=3", 0.25, 0), ("slic:n_segments=100,blur=3", 0.25, 0))
    ['RS', 'slic (n_segments=50)', 'slic (n_segments=100)']
    >>> names(("none", 0.25, 0), ("slic", 0.25, 0), ("slic", 0.5, 0))
    ['RS (sigma=0.25)', 'slic (sigma=0.25)', 'slic (sigma=0.5)']
    >>> names(("slic:n_segments=50,blur=3", 0.25, 0), ("slic:n_segments=50,blur=5", 0.5, 0))  # blur follows the noise
    ['slic (sigma=0.25)', 'slic (sigma=0.5)']
    >>> names(("blur:size=3", 0.25, 0), ("blur:size=3", 0.25, 1))
    ['blur (seed=0)', 'blur (seed=1)']
    >>> names(("slic", 0.25, 0), ("slic", 0.25, 0))
    ['slic (0)', 'slic (1)']
    """
    bases = [method_name(s, path) for s, path in zip(settings, paths, strict=True)]
    added: list[list[str]] = [[] for _ in bases]
    for base in set(bases):  # runs with the same chain have the same options
        group = [i for i, other in enumerate(bases) if other == base]
        for i, words in zip(group, _differing(_option_words([settings[i] for i in group])), strict=True):
            added[i] += words
    for words_of in (_noise_words, _seed_words):
        # If some runs need their noise to be distinguished, all names show it.
        more = _differing([words_of(s) for s in settings])
        longer = [words + extra for words, extra in zip(added, more, strict=True)]
        if len(set(_bracketed(bases, longer))) > len(set(_bracketed(bases, added))):
            added = longer
    names = _bracketed(bases, added)
    for name in set(names):
        group = [i for i, other in enumerate(names) if other == name]
        if len(group) > 1:
            for i, end in zip(group, _path_ends([paths[i] for i in group]), strict=True):
                added[i].append(end)
    return _bracketed(bases, added)


def _bracketed(bases: Sequence[str], added: Sequence[Sequence[str]]) -> list[str]:
    return [f"{base} ({', '.join(words)})" if words else base for base, words in zip(bases, added, strict=True)]


def _differing(runs: Sequence[Words]) -> list[list[str]]:
    """For each run, the texts of the keys whose values differ between runs."""
    keys = dict.fromkeys(key for words in runs for key in words)
    differing = [key for key in keys if len({words[key][0] if key in words else None for words in runs}) > 1]
    return [[words[key][1] for key in differing if key in words] for words in runs]


def _option_words(settings: Sequence[Provenance]) -> list[Words]:
    """The options of partitions with the same chain, without those that only follow from the noise."""
    runs = [_options(s) for s in settings]
    noises = [s.noise_text for s in settings]
    count = Counter(key[2] for key in dict.fromkeys(key for options in runs for key in options))

    def follows_noise(key: OptionKey) -> bool:
        values = {(noise, options.get(key)) for noise, options in zip(noises, runs, strict=True)}
        return len(set(noises)) > 1 and len(values) == len(set(noises)) and key[2] in _noise_dependent(key[3])

    def write(key: OptionKey, value: str) -> str:
        unambiguous = count[key[2]] == 1 and key[2] != "sigma"  # the noise has a sigma too
        return f"{key[2]}={value}" if unambiguous else f"{key[3]}.{key[2]}={value}"

    return [
        {key: (value, write(key, value)) for key, value in options.items() if not follows_noise(key)}
        for options in runs
    ]


def _options(settings: Provenance) -> dict[OptionKey, str]:
    if settings.partition_text is None or settings.partition_text.strip() == "none":
        return {}
    return {
        (part, place, option, link): value
        for part, chain in enumerate(_chains(settings.partition_text))
        for place, (link, options) in enumerate(chain)
        for option, value in options.items()
    }


def _noise_dependent(link: str) -> set[str]:
    """The options of this partition whose "auto" value depends on the noise.

    >>> sorted(_noise_dependent("slic")), _noise_dependent("grid"), _noise_dependent("denoiser")
    (['blur', 'compactness', 'n_segments'], set(), {'sigma'})
    """
    if link == Denoiser.name:  # has no options without its file
        return {"sigma"}
    try:
        weak, strong = (PARTITIONS[link].for_noise(sigma) for sigma in (0.25, 0.5))
    except (KeyError, PprsError):
        return set()
    return {name for name, value in vars(weak).items() if value != getattr(strong, name)}


def _noise_words(settings: Provenance) -> Words:
    if settings.noise_text is None:
        return {}
    name, options = _link(settings.noise_text)
    return {(): (name, name)} | {(option,): (value, f"{option}={value}") for option, value in options.items()}


def _seed_words(settings: Provenance) -> Words:
    return {} if settings.seed is None else {(): (str(settings.seed), f"seed={settings.seed}")}


def _path_ends(paths: Sequence[str]) -> list[str]:
    """The shortest endings of these paths that all differ.

    >>> _path_ends(["runs/a/slic", "runs/b/slic"]), _path_ends(["runs/a", "runs/a"])
    (['a/slic', 'b/slic'], ['a', 'a'])
    """
    parts = [PurePath(path).parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(p[-length:]) for p in parts]
        if len(set(ends)) == len(set(paths)):
            return ends
    return list(paths)


def _chains(text: str) -> list[list[tuple[str, dict[str, str]]]]:
    """The parts of a mean, each a chain of names with their options. Accepts partitions of other versions."""
    return [[_link(link) for link in links] for links in split_text(text)]


def _link(text: str) -> tuple[str, dict[str, str]]:
    """The name and the options of one link of a chain. A file is named without its folder, and counts as an option.

    >>> _link("slic:n_segments=50, blur=3"), _link("denoiser:models%2Fd.onnx,sigma=0.5")
    (('slic', {'n_segments': '50', 'blur': '3'}), ('denoiser', {'file': 'd.onnx', 'sigma': '0.5'}))
    """
    name, _, options = text.strip().partition(":")
    values = {}
    for key, equals, value in (option.partition("=") for option in options.split(",") if option):
        values[key.strip() if equals else FILE] = value.strip() if equals else PurePath(decode_file(key.strip())).name
    return name, values
