"""The card of the network alone, about which nothing is proved."""

from __future__ import annotations

from typing import Any

from pprs.app.cards import TabCard, Tile, style_methods
from pprs.app.requests import Request
from pprs.report import figures


def show_alone(request: Request[Any], label: int, attack: str) -> TabCard:
    """Show the image, and the label of the network alone, which `attack` may alter."""
    return TabCard(
        request.chosen.title,
        "the network alone",
        style_methods([None])[0],
        headline=(request.loaded.get_class_name(label),),
        statement=(f"Nothing is proved about the network alone: {attack} may well fool it.",),
        tiles=[Tile("image", figures.to_rgb(request.chosen.values.numpy()))],
    )
