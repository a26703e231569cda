"""The mode and the device that a network has while it is scored, and not longer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class _Use:
    """A network or a layer in use, and the mode that it had before. A network also has its layers and its device."""

    module: torch.nn.Module
    training: bool
    users: int = 1
    layers: tuple[torch.nn.Module, ...] = ()
    device: torch.device | None = None


_lock = threading.RLock()
_networks: dict[int, _Use] = {}
_layers: dict[int, _Use] = {}  # of all these networks, which may share some


@contextlib.contextmanager
def eval_mode(network: Any) -> Iterator[None]:
    """Set a network to eval mode, and restore the mode of every layer when nobody uses it any more.

    A network that is moved to another device meanwhile is moved back. Several threads may use a network at a time, and
    other networks that share layers with it: what is restored is the state before the first use. Whatever is not a
    `torch.nn.Module` has no mode.
    """
    if not isinstance(network, torch.nn.Module):
        yield
        return
    _begin(network)
    try:
        yield
    finally:
        _end(network)


def _begin(network: torch.nn.Module) -> None:
    with _lock:
        use = _networks.get(id(network))
        if use is not None:
            use.users += 1
            return
        layers = tuple(network.modules())
        for layer in layers:
            if id(layer) in _layers:
                _layers[id(layer)].users += 1
            else:
                _layers[id(layer)] = _Use(layer, layer.training)
        _networks[id(network)] = _Use(network, network.training, layers=layers, device=_device_of(network))
        if any(layer.training for layer in layers):
            network.eval()


def _end(network: torch.nn.Module) -> None:
    with _lock:
        use = _networks[id(network)]
        use.users -= 1
        if use.users:
            return
        del _networks[id(network)]
        for layer in use.layers:
            shared = _layers[id(layer)]
            shared.users -= 1
            if not shared.users:
                del _layers[id(layer)]
                layer.training = shared.training
        if use.device not in (None, _device_of(network)):
            network.to(use.device)


def _device_of(network: torch.nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in network.parameters()), None)
