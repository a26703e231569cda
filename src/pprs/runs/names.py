"""Short names for runs in tables and figures, with as much of their settings as distinguishes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pprs.errors import PprsError
from pprs.partition import PARTITIONS, PLUS
from pprs.runs.settings import RunSettings

Words = Mapping[tuple[Any, ...], tuple[str, str]]  # key -> value, and how it is written
OptionKey = tuple[int, int, str, str]  # which part of a mean, which link of its chain, option, name of the link


def method_name(settings: RunSettings, path: str) -> str:
    """What a run is called in tables and figures: its partition without options, or its file where that is unknown.

    >>> method_name(RunSettings(partition_text="slic:n_segments=50,blur=3/soft:near=4+blur:size=3"), "runs/a")
    'slic/soft+blur'
    >>> method_name(RunSettings(partition_text="none"), "runs/a"), method_name(RunSettings(), "logs/cohen.tsv")
    ('RS', 'cohen')
    """
    if settings.partition_text is None:
        return PurePath(path).stem if PurePath(path).suffix else PurePath(path).name
    if settings.partition_text.strip() == "none":
        return "RS"
    chains = ["/".join(name for name, _ in chain) for chain in _chains(settings.partition_text)]
    return "+".join(chains)


def distinct_names(settings: Sequence[RunSettings], paths: Sequence[str]) -> list[str]:
    """The runs' method names, with as much in brackets as distinguishes them: options, noise, seed, or path.

    >>> def names(*runs):
    ...     settings = [RunSettings(partition_text=p, noise_text=f"gaussian:sigma={s}", seed=i) for p, s, i in runs]
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
    for base in set(bases):  # of one chain each, so that their options are the same
        alike = [i for i, other in enumerate(bases) if other == base]
        for i, words in zip(alike, _differing(_option_words([settings[i] for i in alike])), strict=True):
            added[i] += words
    for words_of in (_noise_words, _seed_words):
        # If some runs need their noise to be distinguished, it is of interest for all.
        longer = [mine + more for mine, more in zip(added, _differing([words_of(s) for s in settings]), strict=True)]
        if len(set(_bracketed(bases, longer))) > len(set(_bracketed(bases, added))):
            added = longer
    names = _bracketed(bases, added)
    for name in set(names):
        alike = [i for i, other in enumerate(names) if other == name]
        if len(alike) > 1:
            for i, end in zip(alike, _path_ends([paths[i] for i in alike]), strict=True):
                added[i].append(end)
    return _bracketed(bases, added)


def _bracketed(bases: Sequence[str], added: Sequence[Sequence[str]]) -> list[str]:
    return [f"{base} ({', '.join(words)})" if words else base for base, words in zip(bases, added, strict=True)]


def _differing(words: Sequence[Words]) -> list[list[str]]:
    """Of each, what is written for the keys whose values are not the same in all of them."""
    keys = dict.fromkeys(key for of in words for key in of)
    apart = [key for key in keys if len({of[key][0] if key in of else None for of in words}) > 1]
    return [[of[key][1] for key in apart if key in of] for of in words]


def _option_words(settings: Sequence[RunSettings]) -> list[Words]:
    """The options of partitions of the same chain, without those that only follow the noise: it says as much."""
    options = [_options(of) for of in settings]
    noises = [of.noise_text for of in settings]
    count = Counter(key[2] for key in dict.fromkeys(key for of in options for key in of))

    def follows(key: OptionKey) -> bool:
        values = {(noise, of.get(key)) for noise, of in zip(noises, options, strict=True)}
        return len(set(noises)) > 1 and len(values) == len(set(noises)) and key[2] in _following_noise(key[3])

    def write(key: OptionKey, value: str) -> str:
        plain = count[key[2]] == 1 and key[2] != "sigma"  # which is the noise's
        return f"{key[2]}={value}" if plain else f"{key[3]}.{key[2]}={value}"

    return [{key: (value, write(key, value)) for key, value in of.items() if not follows(key)} for of in options]


def _options(settings: RunSettings) -> dict[OptionKey, str]:
    if settings.partition_text is None or settings.partition_text.strip() == "none":
        return {}
    return {
        (part, place, option, link): value
        for part, chain in enumerate(_chains(settings.partition_text))
        for place, (link, given) in enumerate(chain)
        for option, value in given.items()
    }


def _following_noise(link: str) -> set[str]:
    """The options of this partition that depend on the noise where they are "auto".

    >>> sorted(_following_noise("slic")), _following_noise("grid")
    (['blur', 'compactness'], set())
    """
    try:
        one, other = (PARTITIONS[link].for_noise(sigma) for sigma in (0.25, 0.5))
    except (KeyError, PprsError):
        return set()
    return {name for name, value in vars(one).items() if value != getattr(other, name)}


def _noise_words(settings: RunSettings) -> Words:
    if settings.noise_text is None:
        return {}
    name, given = _link(settings.noise_text)
    return {(): (name, name)} | {(option,): (value, f"{option}={value}") for option, value in given.items()}


def _seed_words(settings: RunSettings) -> Words:
    return {} if settings.seed is None else {(): (str(settings.seed), f"seed={settings.seed}")}


def _path_ends(paths: Sequence[str]) -> list[str]:
    """The last parts of these paths, as many as it takes for all to differ.

    >>> _path_ends(["runs/a/slic", "runs/b/slic"]), _path_ends(["runs/a", "runs/a"])
    (['a/slic', 'b/slic'], ['a', 'a'])
    """
    parts = [PurePath(path).parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        ends = ["/".join(of[-length:]) for of in parts]
        if len(set(ends)) == len(set(paths)):
            return ends
    return list(paths)


def _chains(text: str) -> list[list[tuple[str, dict[str, str]]]]:
    """The parts of a mean, each a chain of names with their options. Partitions of other versions are read as well."""
    return [[_link(link) for link in part.split("/")] for part in PLUS.split(text)]


def _link(text: str) -> tuple[str, dict[str, str]]:
    """
    >>> _link("slic:n_segments=50, blur=3")
    ('slic', {'n_segments': '50', 'blur': '3'})
    """
    name, _, options = text.strip().partition(":")
    pairs = (option.partition("=") for option in options.split(",") if option)
    return name, {key.strip(): value.strip() for key, _, value in pairs}
