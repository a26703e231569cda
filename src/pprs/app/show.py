"""Pieces of the page as HTML. All text that comes from elsewhere is escaped here."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import Any

from pprs.app.explore import WHY, Asked, Standing, Tile, statement, top_votes
from pprs.certificate import Certificate, confidence, round_down
from pprs.report import figures

COLOURS = ("var(--m0)", "var(--m1)", "var(--m2)")


def number(text: str, unit: str, tip: str, **data: object) -> str:
    """A number with its unit, which tells what it is when it is pointed at or reached by keyboard."""
    kept = "".join(f' data-{key}="{html.escape(str(value))}"' for key, value in data.items())
    return (
        f'<span class="num" tabindex="0" data-tip="{html.escape(tip)}" aria-description="{html.escape(tip)}"{kept}>'
        f"{html.escape(text)}{f' <small>{html.escape(unit)}</small>' if unit else ''}</span>"
    )


def note(text: str, kind: str = "note") -> str:
    """A sentence for the reader: kind "error" where something is to be put right."""
    role = ' role="alert"' if kind == "error" else ""
    return f'<div class="pp {kind}"{role}>{html.escape(text)}</div>'


def image(picture: Any, caption: str, *, alt: str = "", tip: str = "") -> str:
    data = base64.b64encode(figures.png(picture)).decode()
    return (
        f'<figure><img tabindex="0" alt="{html.escape(alt or caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{number(caption, '', tip) if tip else html.escape(caption)}</figcaption></figure>"
    )


def chart(png: bytes, alt: str) -> str:
    data = base64.b64encode(png).decode()
    return f'<div class="pp chart"><img alt="{html.escape(alt)}" src="data:image/png;base64,{data}"></div>'


def columns(rows: Sequence[Sequence[Tile]], titles: Sequence[tuple[str, str]]) -> str:
    """The pictures of each method, side by side."""
    blocks = []
    for i, (row, (name, scheme)) in enumerate(zip(rows, titles, strict=True)):
        tiles = "".join(image(tile.picture, tile.caption, alt=f"{name}: {tile.caption}", tip=tile.tip) for tile in row)
        blocks.append(
            f'<section class="card" style="--c:{COLOURS[i]}">{_head(name, scheme)}'
            f'<div class="tiles">{tiles}</div></section>'
        )
    return f'<div class="pp cards" id="pictures">{"".join(blocks)}</div>'


def _head(name: str, scheme: str) -> str:
    return f'<h3><span class="dot"></span>{html.escape(name)} <code>{html.escape(scheme)}</code></h3>'


def standing(asked: Asked, now: Sequence[Standing]) -> str:
    """The votes, radius and guarantee of each method, the curve of radii, and what all of it belongs to."""
    state = "done" if all(s.done for s in now) else "running"
    cards = "".join(_card(asked, i, s) for i, s in enumerate(now))
    return (
        f'<div class="pp" id="live" data-state="{state}" data-seed="{asked.seed}"><div class="cards">{cards}</div>'
        f"{growth(now)}"
        f'<p class="note">{html.escape(asked.told)}. Each radius holds at every moment, so you may stop when you like; '
        f"each is wrong with probability at most {asked.plan.alpha:g} on its own. Radii are rounded down.</p></div>"
    )


def _card(asked: Asked, i: int, s: Standing) -> str:
    made = s.certificate
    name = "" if made is None else asked.loaded.name_of(made.selected)
    certified = made is not None and not made.abstained
    radius = round_down(made.radius) if made is not None and certified else "–"
    tip = (
        "Certified radius: the largest L2 norm of a change that provably cannot alter the label. Pictures are in "
        f"[0, 1]; the norm is the root of the sum of squares over all pixels and channels, {asked.taken}."
    )
    exact = {"radius": repr(made.radius), "samples": made.n} if made is not None else {}
    big = number(
        radius, "L2" if certified else "", tip if certified else "Nothing is proved (yet): no radius.", **exact
    )
    said = html.escape(statement(made, name, s.done, asked.among) + _wrong(asked, made))
    if certified:
        said = f"up to {number(radius, '', tip)} can".join(said.split(f"up to {radius} can", 1))
    return (
        f'<section class="card" id="m{i}" style="--c:{COLOURS[i]}" data-done="{s.done or ""}">'
        f"{_head(s.name, s.scheme)}"
        f'<div class="big"><b class="label">{html.escape(name) or "…"}</b>{big}</div>'
        f'<p class="statement{"" if certified else " abstained"}">{said}</p>'
        f"{_votes(asked, made)}<p class='note'>{_pace(s)}</p></section>"
    )


def _wrong(asked: Asked, made: Certificate | None) -> str:
    """A certificate tells that a label is stable, not that it is right."""
    if made is None or made.prediction is None or asked.truth in (None, made.prediction):
        return ""
    truth = asked.loaded.name_of(asked.truth) if asked.truth is not None else ""
    return f" It is a {truth}, though: certified is that the label stays, not that it is right."


def _votes(asked: Asked, made: Certificate | None) -> str:
    if made is None:
        return '<div class="bars"></div>'
    lines = []
    for label, votes in top_votes(made):
        share = votes / made.n
        name = html.escape(asked.loaded.name_of(label))
        count = number(
            f"{100 * share:.1f}",
            "%",
            f"{votes:,} of {made.n:,} noisy copies were taken for {asked.loaded.name_of(label)}",
        )
        chosen = " chosen" if label == made.selected else ""
        lines.append(
            f'<div class="bar{chosen}"><span class="name">{name}</span>'
            f'<span class="rail"><i style="width:{100 * share:.2f}%"></i></span>{count}</div>'
        )
    return f'<div class="bars" role="group" aria-label="Votes of noisy copies">{"".join(lines)}</div>'


def _pace(s: Standing) -> str:
    made = s.certificate
    many = number(f"{0 if made is None else made.n:,}", "samples", "Noisy copies that the bound is made from so far.")
    rate = number(
        f"{s.rate:,.0f}", "samples/s", "Noise, partition and network together, while it was this method's turn."
    )
    bound = (
        ""
        if made is None
        else number(
            round_down(made.p_lower),
            "share",
            f"Lower bound on the label's share of all noisy copies, with {confidence(made.alpha)} confidence at all "
            "moments at once. Above one half the label is certified.",
        )
    )
    why = f"<br>{html.escape(WHY.get(s.done, s.done))}" if s.done else ""
    return f"{many} · {rate}{f' · at least {bound}' if bound else ''}{why}"


def growth(now: Sequence[Standing], width: int = 640, height: int = 150) -> str:
    """The radius of each method against its samples, as they came in."""
    trails = [s.trail for s in now]
    if not any(trails):
        return ""
    across = max(t[-1][0] for t in trails if t)
    top = max(r for t in trails for _, r in t) * 1.1 or 0.1
    left, right, low, high = 62, width - 8, height - 14, 12

    def at(samples: int, radius: float) -> str:
        return f"{left + (right - left) * samples / across:.1f},{low - (low - high) * radius / top:.1f}"

    lines = "".join(
        f'<polyline points="{" ".join(at(*p) for p in ((0, 0.0), *trail))}" style="stroke:{COLOURS[i]}"/>'
        for i, trail in enumerate(trails)
        if trail
    )
    heights = ((value, low - (low - high) * value / top) for value in (0.0, top / 2.2, top / 1.1))
    ticks = "".join(
        f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{left - 8}" y="{y + 5:.1f}" text-anchor="end">{round_down(value, 2)}</text>'
        for value, y in heights
    )
    return (
        f'<figure class="growth"><svg viewBox="0 0 {width} {height}" role="img" aria-label="Certified radius against '
        f'samples, one line a method">{ticks}{lines}</svg><figcaption>Certified L2 radius as samples come in, from 0 '
        f"to {across:,} samples.</figcaption></figure>"
    )
