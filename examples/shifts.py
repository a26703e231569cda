"""Write a guarantee of your own: the label stands for every shift of up to 2 pixels.

    python shifts.py

Nothing is drawn here: all 25 shifted images are classified, so the claim is certain. The class says how one image is
answered and what a row holds. Worker processes, resuming, verification, reports and exports come with the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

import pprs
from pprs.runners import run_dataset
from pprs.runs import Answer, Guarantee, Provenance, Question, Session
from pprs.runs.columns import INPUT_COLUMNS, Column, InputRow, Schema


@dataclass(frozen=True)
class ShiftSettings(Provenance):
    """What the rows depend on, besides the model and the data."""

    kind = "shifts"
    ranges: ClassVar = {**Provenance.ranges, "reach": (1, 16)}  # a run may come from somebody else
    exported: ClassVar = {**Provenance.exported, "reach": "int64"}

    reach: int = 2  # in pixels


@dataclass(frozen=True, kw_only=True)
class ShiftRow(InputRow):
    """The answer to one image."""

    prediction: int | None = None  # None if rounding could change the label of the image itself
    shifts: int  # how many shifted images were classified
    held: int  # how many of them got this label

    @property
    def certified(self) -> bool:
        return self.prediction is not None and 0 < self.shifts == self.held


def shift(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """Return an image [C, H, W], moved by some pixels. The pixels at its edge are repeated."""
    rows = (torch.arange(image.shape[1]) - down).clamp(0, image.shape[1] - 1)
    columns = (torch.arange(image.shape[2]) - right).clamp(0, image.shape[2] - 1)
    return image[:, rows][:, :, columns]


class ShiftAnswer(Answer):
    """Classifies an image and all its shifts."""

    def __init__(self, session: Session, reach: int) -> None:
        self.scorer, self.reach = session.make_scorer(), reach

    def answer(self, question: Question, on_passes) -> dict:
        steps = range(-self.reach, self.reach + 1)
        images = [shift(question.image, down, right) for down in steps for right in steps]
        labels = self.scorer.find_labels(torch.stack(images)).tolist()  # -1 where rounding could change the label
        on_passes(len(images))
        own = labels[len(labels) // 2]  # of the image as it is
        prediction = None if own < 0 else own
        held = 0 if prediction is None else labels.count(prediction)
        return {"prediction": prediction, "shifts": len(labels), "held": held, **self.bind(question.image)}


class ShiftGuarantee(Guarantee[ShiftSettings, ShiftRow]):
    """The label stands for every shift of up to `reach` pixels."""

    name = "shifts"
    noun = "a run over shifts"
    verb = "shift"
    promise = "no shift within the reach of the run alters the label"
    settings = ShiftSettings
    schema = Schema(
        ShiftRow,
        (
            *INPUT_COLUMNS,
            Column("prediction", "int64", "INTEGER", least=0),
            Column("shifts", "int64", "INTEGER NOT NULL", least=0),
            Column("held", "int64", "INTEGER NOT NULL", least=0),
            Column("certified", "int64", export=lambda row: int(row.certified)),  # exported, and not stored
        ),
    )
    is_sampled = False
    replayed = "labels: found again for all shifts and compared"

    def open(self, session: Session, settings: ShiftSettings) -> ShiftAnswer:
        return ShiftAnswer(session, settings.reach)

    def count_passes(self, settings: ShiftSettings) -> int:
        return (2 * settings.reach + 1) ** 2

    def check(self, row: ShiftRow, settings: ShiftSettings) -> list[str]:
        """Say what cannot be, without the model or the data."""
        if row.shifts != self.count_passes(settings):
            return [f"shifts is {row.shifts}, and a reach of {settings.reach} has {self.count_passes(settings)}"]
        if row.held > row.shifts or (row.held > 0) != (row.prediction is not None):
            return [f"held is {row.held} of {row.shifts} for the label {row.prediction}"]
        return []


SHIFTS = ShiftGuarantee()


def main() -> None:
    from pprs.training.trainer import Recipe, train

    data = "builtin:mnist5k"
    train(
        pprs.open_dataset(data, split="train"), Recipe(epochs=2, width=8), out=Path("digits.safetensors"),
        data_name=data,
    )  # fmt: skip
    run = run_dataset(
        SHIFTS, "digits.safetensors", data, settings={"reach": 2}, images=range(30), out="runs/shifts",
        runner=pprs.Processes(2), progress=False,
    )  # fmt: skip
    print(run)
    again = pprs.open_run("runs/shifts", guarantee=SHIFTS)
    print(pprs.verify_run(again, progress=False))
    pprs.write_report([again], "report.html")
    print(again.to_pandas()[["idx", "label", "prediction", "held", "certified"]].head(3))


if __name__ == "__main__":
    from shifts import main  # workers import the module by its name

    main()
