"""The page: one file, no script, nothing fetched."""

from __future__ import annotations

import base64
import html
import io
import json
import math
from typing import Any

import numpy as np
import torch
from PIL import Image

from pprs._version import __version__
from pprs.certificate import round_down
from pprs.data import to_tensor
from pprs.errors import PprsError
from pprs.metrics import Summary, paired_differences
from pprs.noise import Noise
from pprs.partition import Superpixels
from pprs.report import figures
from pprs.report.summary import failed_note
from pprs.runs import RunFrame
from pprs.voting import noisy_chunk

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --dim: #5c5c5c; --line: #d9d9d9; --page: #fff; --soft: #f5f5f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #eaeaea; --dim: #a8a8a8; --line: #3d3d3d; --page: #161616; --soft: #222; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto;
  max-width: 1080px; padding: 24px 16px 64px; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p.note, figcaption, .note { color: var(--dim); font-size: .875rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 13rem; }
thead th { border-bottom: 2px solid var(--line); }
td small { color: var(--dim); } td.best { font-weight: 700; }
.curve { background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: 8px; }
.curve svg { width: 100%; height: auto; display: block; }
.example { border-top: 1px solid var(--line); padding: 12px 0; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; }
figure { margin: 0; width: 152px; } figure img { width: 152px; height: 152px; object-fit: contain; background: #888;
  image-rendering: pixelated; border-radius: 4px; display: block; }
figcaption { line-height: 1.3; margin-top: 4px; overflow-wrap: anywhere; }
details { background: var(--soft); border-radius: 6px; padding: 8px 12px; margin: 8px 0; }
code { font-size: .85em; overflow-wrap: anywhere; }
"""


def page(methods: list[RunFrame], summaries: list[Summary], radii: list[float], title: str) -> str:
    """The whole report as HTML."""
    curve = figures.to_bytes(figures.curves(methods), "svg").decode()
    curve = curve[curve.index("<svg") :]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
<p>{_guarantee(methods)}</p>
<h2>Certified accuracy against radius</h2>
<div class="curve" role="img" aria-label="Certified accuracy against L2 radius, one curve a method">{curve}</div>
<p class="note">An image counts at radius r if the method certifies it, as what it really is, with a radius of at least
r. Band: exact 95% interval over the draw of the images, at each radius.{_notes(methods)}</p>
<h2>Table</h2>
<div class="wide">{_table(summaries, radii)}</div>
<p class="note">Certified accuracy at r in %, with its 95% interval; certified F: macro F1 at r, an image with a smaller
radius counting as missed; ACR: average certified radius, 0 where the certified label is not the true one.
RS: plain randomized smoothing. Bold: the best in its column. All methods of one seed are given the same noise.</p>
{_pairs(methods)}
{_gallery(methods)}
<h2>Settings</h2>
{"".join(_settings(m) for m in methods)}
<p class="note">pprs {__version__}</p>
</body></html>
"""


def _notes(methods: list[RunFrame]) -> str:
    """What a reader of the curves must know besides."""
    return _unlabelled(methods) + _points(methods) + _undecided(methods) + _failed(methods)


def _unlabelled(methods: list[RunFrame]) -> str:
    names = ", ".join(html.escape(m.name) for m in methods if not m.labelled)
    return f" <b>No labels are known for {names}: there every certified image counts.</b>" if names else ""


def _points(methods: list[RunFrame]) -> str:
    """Where there are points instead of a curve."""
    told = [
        f"{html.escape(m.name)} at {', '.join(f'{r:g}' for r in m.decided)}" for m in methods if m.decided is not None
    ]
    if not told:
        return ""
    return (
        " Points: sampling stopped once it was decided whether an image is certified at these radii "
        f"({'; '.join(told)}), so that the rows count there alone."
    )


def _undecided(methods: list[RunFrame]) -> str:
    told = [f"{int(m.undecided.sum())} of {len(m)} for {html.escape(m.name)}" for m in methods if m.undecided.any()]
    return (
        f" <b>A budget left images before they were decided ({', '.join(told)}): they count with what is proved of "
        "them so far, and more samples would raise the curve.</b>"
        if told
        else ""
    )


def _failed(methods: list[RunFrame]) -> str:
    told = [f"{html.escape(m.name)}, {failed_note(int(m.failed.sum()))}" for m in methods if m.failed.any()]
    return f" <b>{'; '.join(told)}.</b>" if told else ""


def _guarantee(methods: list[RunFrame]) -> str:
    alphas = {m.settings.alpha for m in methods}
    chance = f"{float(next(iter(alphas))):g}" if len(alphas) == 1 and None not in alphas else "alpha"  # type: ignore[arg-type]
    return (
        "A certificate is a label and a radius: no change of the picture of L2 norm up to that radius can alter the "
        f"smoothed classifier’s label. Each one is wrong with probability at most {chance}. Radii are rounded down."
        + _cylinders(methods)
    )


def _cylinders(methods: list[RunFrame]) -> str:
    """Where fixed segments make the certified region larger than a ball."""
    fixed = []
    for m in methods:
        try:
            partition = m.settings.partition if m.settings.partition_text else None
        except PprsError:  # of another version
            continue
        if partition is not None and partition.static and isinstance(partition, Superpixels):
            fixed.append(html.escape(m.name))
    if not fixed:
        return ""
    return (
        f" The segments of {', '.join(fixed)} are fixed, so there the certified region is a cylinder, larger than the "
        "ball: the radius bounds the change after averaging, and what averaging removes is harmless."
    )


def _table(summaries: list[Summary], radii: list[float]) -> str:
    heads = "".join(f"<th>acc. at {r:g}</th>" for r in radii)
    middle = radii[len(radii) // 2]
    best = [_best([s.accuracy[i] for s in summaries]) for i in range(len(radii))]
    best_f, best_acr = _best([s.f1[len(radii) // 2] for s in summaries]), _best([s.average_radius for s in summaries])
    lines = []
    for s in summaries:
        cells = "".join(
            _cell(
                "–" if math.isnan(a) else f"{100 * a:.1f} <small>{100 * lo:.0f}–{100 * hi:.0f}</small>",
                a == top and len(summaries) > 1,
            )
            for a, lo, hi, top in zip(s.accuracy, s.low, s.high, best, strict=True)
        )
        f1 = s.f1[len(radii) // 2]
        acr = "–"
        if not math.isnan(s.average_radius):
            acr = f"{round_down(s.average_radius)} <small>±{s.average_radius_error:.3f}</small>"
        lines.append(
            f"<tr><td>{html.escape(s.name)}</td>{cells}"
            + _cell(_number(100 * f1, 1), f1 == best_f and len(summaries) > 1)
            + _cell(acr, s.average_radius == best_acr and len(summaries) > 1)
            + f"<td>{_percent(s.abstained)}</td><td>{_number(s.segments, 0)}</td><td>{_number(s.segment_size, 1)}</td>"
            f"<td>{_number(s.samples, 0)}</td><td>{_number(s.seconds, 2)}</td><td>{s.images}</td></tr>"
        )
    return (
        f"<table><thead><tr><th>method</th>{heads}<th>certified F at {middle:g}</th><th>ACR</th><th>abstained</th>"
        "<th>superpixels</th><th>pixels each</th><th>samples / image</th><th>s / image</th><th>images</th></tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _pairs(methods: list[RunFrame]) -> str:
    """How the methods compare image by image."""
    lines = []
    for p in paired_differences(methods):
        word = "ahead" if p.ahead > p.error else "behind" if p.ahead < -p.error else "not told apart"
        lines.append(
            f"<tr><td>{html.escape(p.one)} against {html.escape(p.other)}</td>"
            f"<td>{p.ahead:+.4f} <small>±{p.error:.4f}</small></td><td>{word}</td><td>{p.images}</td></tr>"
        )
    if not lines:
        return ""
    return (
        "<h2>Image by image</h2><div class='wide'><table><thead><tr><th>methods</th><th>ACR ahead by</th>"
        f"<th>at 95%</th><th>images</th></tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        "<p class='note'>Difference of average certified radii over the images that both have, with Student's 95% "
        "interval of the mean difference. Images differ more than methods do, so this tells methods apart that their "
        "own intervals do not.</p>"
    )


def _best(values: list[float]) -> float:
    return max((v for v in values if not math.isnan(v)), default=math.nan)


def _cell(text: str, best: bool) -> str:
    return f'<td class="best">{text}</td>' if best else f"<td>{text}</td>"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f}%"


def _number(value: float, decimals: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{decimals}f}"


def _gallery(methods: list[RunFrame]) -> str:
    """What each method sees of the pictures that the runs kept, with the radius it gave them."""
    data = methods[0].settings.data_fingerprint
    alike = [m for m in methods if data is not None and m.settings.data_fingerprint == data]
    kept = [index for index in methods[0].pictures if all(index in m.idx for m in alike)]
    if not kept or methods[0] not in alike:
        return ""
    blocks = [_example(alike, index) for index in kept]
    others = ", ".join(html.escape(m.name) for m in methods if m not in alike)
    return (
        f"<h2>Pictures</h2><p class='note'>The first noisy copy that each certificate was made from, what the method "
        "makes of it, and the certified "
        f"radius.{f' Of other data, and not shown: {others}.' if others else ''}</p>{''.join(blocks)}"
    )


def _example(methods: list[RunFrame], index: int) -> str:
    with Image.open(io.BytesIO(methods[0].pictures[index])) as file:
        clean = to_tensor(file)
    label = int(methods[0].label[methods[0].idx == index][0])
    names = methods[0].settings.class_names
    truth = "" if label < 0 else f": {html.escape(figures.class_name(label, names))}"
    tiles = [_tile(figures.shown(clean.numpy()), f"original{truth}")]
    seen: dict[tuple[str, int], int] = {}  # where the noisy picture of a noise and seed stands
    for method in methods:
        noise, seed = str(method.settings.noise), method.settings.seed or 0
        noisy = _noisy(clean, method.settings.noise, seed, index)
        if (noise, seed) not in seen:
            seen[noise, seed] = len(tiles)
            tiles.append(_tile(figures.shown(noisy), f"noisy: {html.escape(noise)}"))
        where = method.idx == index
        outcome = figures.verdict(int(method.prediction[where][0]), label, float(method.radius[where][0]), names)
        partition = method.settings.partition
        made = figures.views(noisy, partition, method.settings.noise)
        if partition is None:
            tiles[seen[noise, seed]] = _tile(
                made["noisy"],
                f"noisy: {html.escape(noise)}<br><b>{html.escape(method.name)}</b>: {html.escape(outcome)}",
            )
            continue
        if "superpixels" in made:
            tiles.append(_tile(made["superpixels"], "superpixels"))
        tiles.append(_tile(made["averaged"], f"<b>{html.escape(method.name)}</b>: {html.escape(outcome)}"))
    return f'<div class="example"><div class="note">image {index}</div><div class="tiles">{"".join(tiles)}</div></div>'


def _noisy(clean: torch.Tensor, noise: Noise, seed: int, index: int) -> Any:
    return np.asarray(noisy_chunk(clean, noise, seed, index)[0])


def _tile(picture: Any, caption: str) -> str:
    data = base64.b64encode(figures.png(picture)).decode()
    return f'<figure><img alt="" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'


def _settings(method: RunFrame) -> str:
    told = {k: v for k, v in method.settings.to_dict().items() if k != "class_names"}
    return (
        f"<details><summary>{html.escape(method.name)}</summary><pre><code>"
        f"{html.escape(json.dumps(told, indent=1))}</code></pre></details>"
    )
