"""Arithmetic as a value means what its text always meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pprs import PprsError
from pprs.noise import QuantisedImage, parse_noise
from pprs.smoothing.arithmetic import ARITHMETICS, Arithmetic

# What functions of texts returned for every spelling and kind of input, before the value took their place.
TABLE = json.loads((Path(__file__).parents[1] / "golden" / "values" / "arithmetic.json").read_text(encoding="utf-8"))


def attempt(compute: Any) -> Any:
    try:
        return compute()
    except PprsError as error:
        return {"error": error.message, "parameter": error.parameter}


@pytest.mark.parametrize("name", TABLE["inputs"])
def test_every_spelling_for_every_kind_of_input(name: str) -> None:
    stored = TABLE["inputs"][name]
    x = torch.from_numpy(np.array(stored["values"], np.float32).reshape(stored["shape"]))
    lines = [line for line in TABLE["table"] if line["input"] == name]
    assert {line["text"] for line in lines} >= set(ARITHMETICS)
    for line in lines:
        noise, text = parse_noise(line["noise"]), line["text"]
        case = f"{text} under {noise}"

        def prepare(noise: Any = noise, text: str = text) -> Any:
            prepared = Arithmetic.of(text, noise).prepare(x, noise)
            if not isinstance(prepared, QuantisedImage):
                return "real"
            return [prepared.levels, prepared.quantisation.moved, int(prepared.k.sum())]

        assert attempt(lambda n=noise, t=text: Arithmetic.of(t, n).kind) == line["kind"], case
        assert attempt(lambda n=noise, t=text: str(Arithmetic.of(t, n).fix(x, n))) == line["fixed"], case
        assert attempt(prepare) == line["prepared"], case
        if text in ARITHMETICS or line["signal_levels"] is not None:
            made = Arithmetic(text)
            assert (made.levels, made.bit_depth, made.signal_levels) == (
                line["levels"], line["bit_depth"], line["signal_levels"],
            ), case  # fmt: skip


@pytest.mark.parametrize("text", ["real", "auto", "8-bit", "16-bit", "rounded", "levels=1000", "levels=8388608"])
def test_a_run_records_it(text: str) -> None:
    made = Arithmetic(text)
    assert Arithmetic.recorded(made.kind, made.bit_depth, made.signal_levels, made.strict_levels) == made


@pytest.mark.parametrize("text", ["levels=7", "levels=-1", "levels=", "levels=1e6", "levels=" + "1" * 30, "Exact", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PprsError, match="unknown arithmetic") as failed:
        Arithmetic(text)
    assert failed.value.parameter == "arithmetic"
