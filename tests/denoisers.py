"""Small denoisers for tests: trained on digits, written by hand as ONNX, or exported."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch.nn import functional

from pprs.adaptation.denoising import train_denoiser
from pprs.adaptation.problem import Changes, SmoothingProblem
from pprs.data import open_dataset
from pprs.denoisers import DenoisingNetwork
from pprs.model import Model
from pprs.noise import Gaussian
from pprs.progress import Silent

LOW, HIGH = 0.1, 0.8


@functools.cache
def digits(count: int = 200, side: int = 14, split: str = "train") -> torch.Tensor:
    """Digits at a reduced size, so that training takes seconds."""
    data = open_dataset("builtin:mnist5k", split=split)
    step = len(data) // count
    return functional.adaptive_avg_pool2d(torch.stack([data[i * step].image for i in range(count)]), side)


class Blind(torch.nn.Module):
    """A classifier without gradients, as those in ONNX Runtime."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().flatten(1)[:, :10]


@functools.cache
def trained() -> DenoisingNetwork:
    """A denoiser for a range of noise, trained on digits."""
    problem = SmoothingProblem(Model(Blind(), "blind", 10), digits(), Gaussian(0.25), None)
    changes = train_denoiser(problem, Changes(), progress=Silent(), steps=80, sigmas=(LOW, HIGH))
    assert isinstance(changes.denoiser, DenoisingNetwork)
    return changes.denoiser


def error(estimate: torch.Tensor | np.ndarray, clean: torch.Tensor) -> float:
    """The mean squared error."""
    return float(((torch.as_tensor(estimate) - clean) ** 2).mean())


def write_onnx(
    path: Path,
    *,
    level: list[int | str] | None = None,
    channels: int | str = "c",
    side: int | str | None = None,
    batch: int | str = "b",
    random: bool = False,
    metadata: str | None = None,
) -> Path:
    """Write a network that shrinks pixels towards 0.5: by 1 / (1 + sigma), given a sigma of this shape, else by half.

    With two channels, the second one is the sigma.
    """  # fmt: skip
    sides = ("h", "w") if side is None else (side, side)
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, *sides])
    inputs, nodes = [image], []
    constants = {"half": [0.5], "one": [1.0], "axes": [1], "zero": [0], "first": [1]}
    stored = [
        helper.make_tensor(k, TensorProto.FLOAT if k in ("half", "one") else TensorProto.INT64, [1], v)
        for k, v in constants.items()
    ]
    pixels, divisor = "x", "two"
    if channels == 2:
        nodes += [helper.make_node("Split", ["x"], ["pixels", "map"], axis=1, num_outputs=2)]
        pixels, sigma = "pixels", "map"
    elif level is not None:
        inputs.append(helper.make_tensor_value_info("sigma", TensorProto.FLOAT, level))
        sigma = "sigma"
        if len(level) in (1, 2):  # one number per image
            nodes.append(helper.make_node("Reshape", ["sigma", "per_image"], ["column"]))
            stored.append(helper.make_tensor("per_image", TensorProto.INT64, [4], [-1, 1, 1, 1]))
            sigma = "column"
    if channels == 2 or level is not None:
        nodes.append(helper.make_node("Add", [sigma, "one"], [divisor]))
    else:
        nodes.append(helper.make_node("Add", ["one", "one"], [divisor]))
    nodes += [
        helper.make_node("Sub", [pixels, "half"], ["centred"]),
        helper.make_node("Div", ["centred", divisor], ["shrunk"]),
        helper.make_node("Add", ["shrunk", "half"], ["sum"]),
    ]
    last = "sum"
    if random:
        nodes += [
            helper.make_node("RandomNormalLike", ["sum"], ["noise"]),
            helper.make_node("Add", ["sum", "noise"], ["y"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", [last], ["y"]))
    returned = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 1 if channels == 2 else channels, *sides])
    graph = helper.make_graph(nodes, "denoiser", inputs, [returned], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    if metadata is not None:
        helper.set_model_props(model, {"pprs": metadata})
    onnx.save(model, path)
    return path


class Epsilon(torch.nn.Module):
    """A diffusion model of ten thousand weights for small grey images: the noise in x_t, given x_t and t."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        sizes = [2, 24, 24, 24, 1]
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(a, b, 5, 1, 2) for a, b in itertools.pairwise(sizes))

    def forward(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = torch.cat([x_t, (t.float() / self.steps).view(-1, 1, 1, 1).expand_as(x_t)], 1)
        for layer in self.layers[:-1]:
            h = torch.relu(layer(h))
        return self.layers[-1](h)


@functools.cache
def trained_epsilon(shares: tuple[float, ...]) -> Epsilon:
    """Train a diffusion model on digits, for steps with these shares of the signal."""
    torch.manual_seed(0)
    net, clean, shares_of = Epsilon(len(shares)), 2 * digits() - 1, torch.tensor(shares, dtype=torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(100):
        t = torch.randint(0, len(shares), (48,))
        x, share = clean[torch.randint(0, len(clean), (48,))], shares_of[t].view(-1, 1, 1, 1)
        epsilon = torch.randn_like(x)
        loss = functional.mse_loss(net(share.sqrt() * x + (1 - share).sqrt() * epsilon, t), epsilon)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval().requires_grad_(False)


def export(net: torch.nn.Module, example: tuple[torch.Tensor, ...], path: Path) -> Path:
    """Export a network whose inputs share their first axis."""
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.onnx.export(
        net, example, dynamo=True, dynamic_shapes=tuple({0: batch} for _ in example), verbose=False
    )
    assert program is not None
    program.save(str(path))
    return path
