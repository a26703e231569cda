"""A classifier that is ready to be smoothed, and what is known of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pprs.errors import ConfigurationError, PprsError, suggest
from pprs.model.preprocess import Preprocess


@dataclass(frozen=True)
class Model:
    """`module` maps pictures in [0, 1] to scores: its normalisation is part of it. None: not known.

    `class_ids` are other names of the classes that data may use (ImageNet's n01440764). `fingerprint` stands for the
    weights of a module that has none to show.
    """

    module: torch.nn.Module
    source: str
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    input_shape: tuple[int, int, int] | None = None
    preprocess: Preprocess | None = None
    class_ids: tuple[str, ...] | None = None
    fingerprint: str = ""

    def digest(self) -> str:
        """Changes with any weight, so that a run cannot go on with another network under the same name."""
        sha = hashlib.sha256(self.fingerprint.encode())
        for name, tensor in sorted(self.module.state_dict().items()):
            sha.update(name.encode())
            sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return sha.hexdigest()[:16]

    def prepare(self, image: torch.Tensor) -> torch.Tensor:
        """A picture [C, H, W] in [0, 1], of any size, as this network takes it."""
        if self.input_shape is None:
            return image
        channels, height, width = self.input_shape
        return (self.preprocess or Preprocess(height, width, shorter=max(height, width)))(image, channels)

    def restricted(self, labels: Sequence[str]) -> Model:
        """The classifier that chooses among some of its labels only: numbers, names or ids."""
        if self.num_classes is None:
            raise ConfigurationError(
                f"`labels` cannot be used with {self.source}, which does not say how many classes it has",
                parameter="labels",
            )
        chosen = [self.index_of(label) for label in labels]
        if len(chosen) < 2 or len(set(chosen)) < len(chosen):
            raise ConfigurationError(
                f"`labels` needs two or more different labels, not {', '.join(labels)}", parameter="labels"
            )

        def pick(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
            return None if names is None else tuple(names[i] for i in chosen)

        return replace(
            self,
            module=Restricted(self.module, chosen),
            num_classes=len(chosen),
            class_names=pick(self.class_names) or tuple(str(i) for i in chosen),
            class_ids=pick(self.class_ids),
        )

    def index_of(self, label: str) -> int:
        """The number of a class, given by number, name or id."""
        count = self.num_classes or 0
        if label.isascii() and label.isdecimal():
            if int(label) >= count:
                raise ConfigurationError(
                    f"there is no label {label}: the classes of {self.source} are 0 to {count - 1}", parameter="labels"
                )
            if label in (self.class_names or ()) and (self.class_names or ())[int(label)] != label:
                raise ConfigurationError(
                    f"label {label} could be a number or a name: class {label} of {self.source} is called "
                    f'"{(self.class_names or ())[int(label)]}", and another one is called "{label}". Use a network '
                    "whose classes have other names.",
                    parameter="labels",
                )
            return int(label)
        known = names_of(self)
        found = known.get(plain(label))
        if found is None:
            options = [*(self.class_names or ()), *(self.class_ids or ())]
            hint = suggest(label, options) if options else "Its classes have no names: give numbers."
            what = f'{self.source} has no label "{label}"'
            if plain(label) in known:
                what = f'label "{label}" is the name of several classes of {self.source}: give a number'
            raise ConfigurationError(f"{what}. {hint}", parameter="labels")
        return found


def plain(name: str) -> str:
    """A name but for case, spaces and what joins words; signs that may tell names apart ("C", "C++") stay."""
    return "".join(c for c in name.casefold() if c not in " _-./'\t" or len(name) <= 2)


def names_of(model: Model) -> dict[str, int | None]:
    """Every name of every class -> its number; None where several classes have it. "crane, bird" is "crane" too."""
    found: dict[str, int | None] = {}
    for names in (model.class_ids, model.class_names):
        for i, name in enumerate(names or ()):
            for key in {plain(name), plain(name.split(",")[0])}:
                found[key] = i if found.get(key, i) == i else None
    return found


class Normalised(torch.nn.Module):
    """Pictures in [0, 1] -> the scores of a network that wants them normalised.

    `flip`: it wants blue first. A network that answers with a record of results is asked for its `logits`.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(
        self, net: torch.nn.Module, mean: Sequence[float], std: Sequence[float], *, flip: bool = False
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(s > 0 for s in std):
            raise PprsError(
                f"mean {list(mean)} and std {list(std)} cannot normalise pictures: both need a number for each "
                "channel, and std must be above 0"
            )
        self.net, self.flip = net, flip
        self.register_buffer("flipped", torch.tensor(flip))  # part of what tells networks apart
        self.register_buffer("mean", torch.tensor(list(mean), dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(list(std), dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: Any = self.net((x.flip(1) if self.flip else x).sub(self.mean).div(self.std))
        return getattr(made, "logits", made)  # type: ignore[no-any-return]


class Restricted(torch.nn.Module):
    """Some of a network's scores, in a given order."""

    chosen: torch.Tensor

    def __init__(self, net: torch.nn.Module, chosen: Sequence[int]) -> None:
        super().__init__()
        self.net = net
        self.leaves_input_alone = getattr(net, "leaves_input_alone", False)
        self.register_buffer("chosen", torch.tensor(list(chosen)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.net(x)
        return scores.index_select(1, self.chosen)
