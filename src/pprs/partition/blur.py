from __future__ import annotations

from dataclasses import dataclass

from pprs.partition.base import Floats, Ints, Partition, box_blur, check_odd


@dataclass(frozen=True)
class Blur(Partition):
    """Box blur: the baseline that superpixels have to beat. No segments, the same for every picture."""

    name = "blur"
    static = True

    size: int = 3

    def __post_init__(self) -> None:
        check_odd(self.size, "size")

    def run(self, noisy: Floats) -> tuple[Floats, Ints | None]:
        return box_blur(noisy, self.size), None
