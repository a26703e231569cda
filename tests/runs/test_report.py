from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import certify_counts, pprs
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from sklearn.metrics import f1_score

from pprs import PprsError, open_run, write_report
from pprs.metrics import (
    accuracy_interval,
    average_certified_radius,
    certified_accuracy,
    f1_of_certified,
    paired_differences,
)
from pprs.report import make_report
from pprs.report.figures import draw_curves
from pprs.report.table import Table, TableCell
from pprs.runs import Failure, Row, RunFrame, RunSettings, RunWriter, export, read_frame, read_frames
from pprs.runs.names import distinct_names
from pprs.smoothing.certificate import round_down

SETTINGS = RunSettings(
    model="m", data="d", noise_text="gaussian:sigma=0.5", partition_text="slic:n_segments=50", n0=100, n=1000,
    alpha=0.001, seed=0, class_names=("cat", "dog", "<owl>"),
)  # fmt: skip


def make_row(
    idx: int, label: int | None, counts: tuple[int, ...], segments: float | None = None, seconds: float = 0.5
) -> Row:
    """A row that follows from these votes under SETTINGS. The class with the most of them is the selected one."""
    size = None if segments is None else 784 / segments
    row = Row(idx, label, None, counts.index(max(counts)), 0.0, 0.0, counts, segments, size, seconds)
    return certify_counts(row, SETTINGS)


ROWS = [
    make_row(0, 0, (780, 120, 100), 48.5),  # radius 0.317
    make_row(1, 1, (20, 960, 20), 47.5),  # radius 0.765
    make_row(2, 1, (700, 200, 100), 48.0, 61.25),  # radius 0.197
    make_row(5, 2, (250, 250, 500), 48.0),
]


def frame(label: list[int], prediction: list[int], radius: list[float]) -> RunFrame:
    n = len(label)
    nan = np.full(n, np.nan)
    return RunFrame(
        "m",
        np.arange(n),
        np.array(label),
        np.array(prediction),
        np.array(radius),
        nan,
        nan,
        nan,
        nan,
        np.zeros(n, bool),
    )


def write_run(
    folder: Path, rows: Sequence[Row], image: bytes | None = None, failures: Sequence[Failure] = (), **overrides: Any
) -> Path:
    """Write a run with the votes of these rows and with SETTINGS, except for the overrides."""
    settings = dataclasses.replace(SETTINGS, **overrides)
    with RunWriter(folder, settings) as writer:
        writer.add([(certify_counts(row, settings), image) for row in rows], failures)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", ROWS)


def test_a_path_may_be_a_string(run: Path) -> None:
    assert len(read_frame(str(run))) == len(read_frame(run)) > 0


def test_cohens_log_gives_cohens_curve(golden: Path) -> None:
    log = read_frame(golden / "cohen_cifar10_sigma_0.25.tsv")
    assert len(log) == 500
    for r, expected in json.loads((golden / "cohen_curve.json").read_text())["certified_accuracy"].items():
        assert certified_accuracy(log, np.array([float(r)]))[0] == pytest.approx(expected, abs=1e-12)


def test_certified_accuracy_counts_the_radius_itself() -> None:
    m = frame([0, 0, 1, 1], [0, 0, 0, -1], [0.5, 0.25, 0.9, 0.0])
    assert certified_accuracy(m, np.array([0.0, 0.25, 0.2500001, 0.5, 0.51])).tolist() == [0.5, 0.5, 0.25, 0.25, 0.0]
    assert average_certified_radius(m) == pytest.approx(0.75 / 4)


@given(st.integers(0, 40), st.integers(0, 3))
def test_the_f1_of_certified_labels_has_uncertified_images_as_a_separate_class(seed: int, tenth: int) -> None:
    rng = np.random.default_rng(seed)
    label, prediction = rng.integers(0, 4, 30), rng.integers(-1, 4, 30)
    radius = np.where(prediction < 0, 0, rng.random(30))
    r = tenth / 10
    answers = np.where((prediction >= 0) & (radius >= r), prediction, 99)
    expected = f1_score(label, answers, labels=np.unique(label), average="macro", zero_division=0)
    assert f1_of_certified(frame(label, prediction, radius), r) == pytest.approx(expected)


def test_points_at_a_single_radius_are_inside_the_axes() -> None:
    decided = dataclasses.replace(frame([0, 0], [0, 0], [0.1, 0.05]), settings=RunSettings(stop="radius:0.1"))
    axes = Figure().subplots()
    draw_curves(axes, [decided] * 6)
    drawn = [x for container in axes.containers for x in container[0].get_xdata()]
    assert len(drawn) == 6
    low, high = axes.get_xlim()
    assert low < min(drawn)
    assert max(drawn) < high - 0.02 * (high - low)
    looks = {(c[0].get_color(), c[0].get_marker()) for c in axes.containers}
    assert len(looks) == 6


def test_a_legend_counts_images_in_words() -> None:
    """The letter n stands for the samples of one image."""
    axes = Figure().subplots()
    draw_curves(axes, [frame([0, 0], [0, 0], [0.1, 0.05]), frame([0], [0], [0.1])])
    assert [text.get_text() for text in axes.get_legend().texts] == ["m (2 images)", "m (1 image)"]
    drawn = sorted((Path(__file__).parents[2] / "docs").rglob("*.svg"))
    assert drawn
    for path in drawn:  # Matplotlib writes texts as paths, and as comments beside them
        assert not re.search(r"<!-- .*\bn ?= ?\d", path.read_text(encoding="utf-8")), path


def test_band_is_the_exact_interval() -> None:
    low, high = accuracy_interval(np.array([0.0, 0.5, 1.0]), 20)
    assert low[0] == 0
    assert high[2] == 1
    assert (low[1], high[1]) == (pytest.approx(0.27196, abs=1e-5), pytest.approx(0.72804, abs=1e-5))
    assert high[0] == pytest.approx(1 - 0.025 ** (1 / 20))


@given(st.floats(0, 1e4))
def test_rounding_is_down(radius: float) -> None:
    rounded = Decimal(round_down(radius))
    assert rounded <= Decimal(radius) < rounded + Decimal("0.001")


def test_export_tsv_is_cohens_format(run: Path, tmp_path: Path) -> None:
    opened = open_run(run)
    text = export(opened.outcomes(), opened.settings, "tsv", None)
    lines = text.splitlines()
    assert lines[0] == "idx\tlabel\tpredict\tradius\tcorrect\ttime"
    radii = [round_down(row.radius, 6) for row in ROWS]
    assert lines[1].startswith(f"0\t0\t0\t{radii[0]}\t1\t0:00:00.5")
    assert lines[2].startswith(f"1\t1\t1\t{radii[1]}\t1\t")
    assert lines[3] == f"2\t1\t0\t{radii[2]}\t0\t0:01:01.250000"
    assert lines[4].startswith("5\t2\t-1\t0.000000\t0\t")
    assert any(f"{row.radius:.6f}" > text for row, text in zip(ROWS, radii, strict=True))  # rounding to nearest differs


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet", "json"])
def test_exported_rows_draw_the_same_report(run: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"rows.{kind}"
    opened = open_run(run)
    export(opened.outcomes(), opened.settings, kind, out)
    a, b = read_frame(run), read_frame(out)
    for name in ("idx", "label", "prediction"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    if kind == "tsv":
        assert (b.radius <= a.radius).all()
    else:
        np.testing.assert_array_equal(a.radius, b.radius)
        np.testing.assert_array_equal(a.segments, b.segments)
        assert (b.name, b.full_name) == ("slic", "slic:n_segments=50 under gaussian:sigma=0.5")
        assert b.full_name == a.full_name
        assert b.settings.noise_text == SETTINGS.noise_text


def test_methods_are_compared_only_on_the_same_images() -> None:
    one, other = frame([0, 1, 2], [0, 1, 2], [0.5, 0.4, 0.3]), frame([0, 1, 2], [0, 1, 1], [0.2, 0.2, 0.2])
    for data, count in (("mnist", 1), ("cifar10", 0)):
        pair = [
            dataclasses.replace(one, settings=RunSettings(data="mnist")),
            dataclasses.replace(other, settings=RunSettings(data=data)),
        ]
        assert len(paired_differences(pair)) == count
    (p,) = paired_differences([dataclasses.replace(m, settings=RunSettings(data="mnist")) for m in (one, other)])
    differences = np.array([0.3, 0.2, 0.3])
    assert p.ahead == pytest.approx(differences.mean())
    assert p.error == pytest.approx(
        4.3027 * differences.std(ddof=1) / np.sqrt(3), rel=1e-4
    )  # Student, two degrees of freedom
    assert paired_differences([one, other]) == []  # their data is unknown


def test_formats(run: Path, tmp_path: Path) -> None:
    report = write_report([run], tmp_path / "r.json", radii=[0.0, 0.25, 0.5])
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["radii"] == list(report.radii) == [0.0, 0.25, 0.5]
    assert content["methods"][0]["accuracy"] == [0.5, 0.5, 0.25]
    assert content["methods"][0]["full_name"] == "slic:n_segments=50 under gaussian:sigma=0.5"
    write_report([run, run], tmp_path / "r.md")
    table = (tmp_path / "r.md").read_text().splitlines()
    assert len({line.count("|") for line in table[:4]}) == 1
    assert table[-1].count("| +0.0000 | ± 0.0000 |") == 1  # a run against itself, image by image
    assert "50.0 (7–93)" in table[2]
    assert "- slic (run): `slic:n_segments=50 under gaussian:sigma=0.5`" in table
    write_report([run], tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    for name in ("r.pdf", "again.pdf"):
        write_report([run], tmp_path / name)
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "r.pdf").read_bytes() == (tmp_path / "again.pdf").read_bytes()  # without a date
    write_report([run], tmp_path / "r.svg")
    first = (tmp_path / "r.svg").read_bytes()
    assert b"<svg" in first
    with pytest.raises(PprsError, match="html, json, md, pdf, png, svg"):
        write_report([run], tmp_path / "r.doc")
    assert report.summaries[0].segments == pytest.approx(48)


def test_names_distinguish_runs(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", ROWS[:1], noise_text="gaussian:sigma=1.0")
    frames = read_frames([run, other])
    assert [f.name for f in frames] == ["slic (sigma=0.5)", "slic (sigma=1.0)"]
    assert [f.full_name for f in frames] == [
        "slic:n_segments=50 under gaussian:sigma=0.5",
        "slic:n_segments=50 under gaussian:sigma=1.0",
    ]
    assert read_frame(run).name == "slic"
    plain = write_run(tmp_path / "plain", ROWS[:1], partition_text="none")
    assert read_frame(plain).full_name == "plain randomized smoothing under gaussian:sigma=0.5"


SLIC, SOFT = "slic:n_segments=50,compactness=0.15,blur=3,iterations=2", "soft:near=4,guide=0.1"


@pytest.mark.parametrize(
    ("partitions", "expected"),
    [
        (["none"], ["RS"]),
        ([SLIC, f"{SLIC}/{SOFT}/shifts:count=4"], ["slic", "slic/soft/shifts"]),
        ([f"{SLIC}+blur:size=3", "none"], ["slic+blur", "RS"]),
        # Only the options that differ, and only for methods with the same name.
        (
            [SLIC, SLIC.replace("50", "100"), "blur:size=3"],
            ["slic (n_segments=50)", "slic (n_segments=100)", "blur"],
        ),
        (
            [SLIC, SLIC.replace("50,", "100,").replace("=3", "=5")],
            ["slic (n_segments=50, blur=3)", "slic (n_segments=100, blur=5)"],
        ),
        # With the name of the part, if several parts have the option.
        (
            [f"{SLIC}+blur:size=3+median:size=3", f"{SLIC}+blur:size=3+median:size=5"],
            ["slic+blur+median (median.size=3)", "slic+blur+median (median.size=5)"],
        ),
        (["gauss:sigma=1.0", "gauss:sigma=2.0"], ["gauss (gauss.sigma=1.0)", "gauss (gauss.sigma=2.0)"]),
        # A partition of another version, with an option that only one of them has, and a number with a plus sign.
        (["wavelet:level=2", "wavelet:level=2,size=1e+16"], ["wavelet", "wavelet (size=1e+16)"]),
    ],
)  # fmt: skip
def test_names_are_short(partitions: list[str], expected: list[str]) -> None:
    settings = [dataclasses.replace(SETTINGS, partition_text=text) for text in partitions]
    assert distinct_names(settings, [f"runs/{i}" for i in range(len(settings))]) == expected


@pytest.mark.parametrize(
    ("noises", "seeds", "expected"),
    [
        (["gaussian:sigma=0.25", "gaussian:sigma=0.5"], [0, 1], ["slic (sigma=0.25)", "slic (sigma=0.5)"]),
        (
            ["gaussian:sigma=0.25", "exponential:sigma=0.25,power=2"],
            [0, 0],
            ["slic (gaussian)", "slic (exponential, power=2)"],
        ),
        (["gaussian:sigma=0.25"] * 2, [0, 1], ["slic (seed=0)", "slic (seed=1)"]),
        (["gaussian:sigma=0.25"] * 2, [0, 0], ["slic (a/run)", "slic (b/run)"]),
        ([None, None], [None, None], ["slic (a/run)", "slic (b/run)"]),
    ],
)
def test_names_contain_the_noise_the_seed_or_the_path_if_options_do_not_differ(
    noises: list[str | None], seeds: list[int | None], expected: list[str]
) -> None:
    settings = [dataclasses.replace(SETTINGS, noise_text=n, seed=s) for n, s in zip(noises, seeds, strict=True)]
    assert distinct_names(settings, ["/runs/a/run", "/runs/b/run"]) == expected


def test_the_noise_is_named_instead_of_the_options_that_follow_it() -> None:
    runs = [(SLIC, 0.25), (SLIC.replace("0.15,blur=3", "0.2121,blur=5"), 0.5), ("none", 0.25)]
    settings = [
        dataclasses.replace(SETTINGS, partition_text=p, noise_text=f"gaussian:sigma={sigma}") for p, sigma in runs
    ]
    assert distinct_names(settings, ["a", "b", "c"]) == ["slic (sigma=0.25)", "slic (sigma=0.5)", "RS (sigma=0.25)"]
    # An option that does not follow the noise is named.
    settings[1] = dataclasses.replace(settings[1], partition_text=SLIC.replace("iterations=2", "iterations=9"))
    assert distinct_names(settings, ["a", "b", "c"])[:2] == ["slic (iterations=2)", "slic (iterations=9)"]


HOSTILE = Table(
    ("a|b", "<b>n</b>"),
    (
        ("<script>alert(1)</script>", TableCell("1.0", "(0–2)", tip='"x" onclick="alert(1)"', best=True)),
        ("a|b\nc", TableCell("–")),
        (TableCell("[red]x[/red]", tip="<i>"), "2.0"),
    ),
    "<title>",
)


def test_a_table_as_markdown_and_csv() -> None:
    lines = HOSTILE.to_markdown().splitlines()
    assert lines[0] == r"| a\|b | <b>n</b> |"
    assert lines[2] == "| <script>alert(1)</script> | 1.0 (0–2) |"
    assert lines[3] == r"| a\|b c | – |"
    assert len(lines) == 5
    rows = list(csv.reader(io.StringIO(HOSTILE.to_csv())))
    assert rows[0] == ["a|b", "<b>n</b>"]
    assert rows[1:3] == [["<script>alert(1)</script>", "1.0 (0–2)"], ["a|b\nc", ""]]


def test_a_table_as_html_is_escaped() -> None:
    text = HOSTILE.to_html()
    assert set(re.findall(r"</?(\w+)", text)) == {
        "table", "caption", "thead", "tbody", "tr", "th", "td", "b", "small",
    }  # fmt: skip
    assert "<b>n</b>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert 'title="&#34;x&#34; onclick=&#34;alert(1)&#34;"' in text
    assert re.search(r'<td class="best"[^>]*><b>1.0</b> <small>\(0–2\)</small></td>', text)
    assert text.count("<b>") == 1


def test_a_table_on_a_terminal_shows_brackets_literally() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(HOSTILE.to_rich())
    output = console.file.getvalue()
    assert "[red]x[/red]" in output
    assert "a|b" in output


def test_runs_folders_and_exported_files_go_into_one_report(run: Path, tmp_path: Path) -> None:
    opened = open_run(run)
    export(opened.outcomes(), opened.settings, "parquet", tmp_path / "rows.parquet")
    export(opened.outcomes(), opened.settings, "tsv", tmp_path / "log.tsv")
    other = write_run(tmp_path / "other", ROWS, partition_text="none")
    sources = [opened, other, str(run), tmp_path / "rows.parquet", tmp_path / "log.tsv"]
    report = write_report(sources, tmp_path / "r.html", radii=[0.0, 0.25])
    assert [f.name for f in report.frames] == ["slic (run)", "RS", "slic (run)", "slic (rows.parquet)", "log"]
    assert {s.accuracy for s in report.summaries} == {(0.5, 0.5)}
    page = (tmp_path / "r.html").read_text()
    for name in ("slic (run)", "RS", "slic (rows.parquet)", "log"):
        assert f"<summary>{name}</summary>" in page
    assert make_report(sources, [0.0]).summaries[0].accuracy == (0.5,)


def test_the_page_has_the_full_partition_in_tooltips_and_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "a", ROWS[:2], _png(), partition_text=SLIC, data_fingerprint="x")
    write_run(tmp_path / "b", ROWS[:2], _png(), partition_text=SLIC.replace("50", "20"), data_fingerprint="x")
    write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    for full, short in ((SLIC, "slic (n_segments=50)"), (SLIC.replace("50", "20"), "slic (n_segments=20)")):
        title = f'title="{full} under gaussian:sigma=0.5">'
        assert re.search(rf"<td[^>]* {re.escape(title + short)}</td>", page)  # in the table
        assert f"<b {title}{short}</b>" in page  # with its image
        assert f"<summary>{short}</summary>" in page
        assert f"<code>{full} under gaussian:sigma=0.5</code>" in page
        assert f"<code>{full}</code>" in page
    assert "against slic (n_segments=20)" in page
    visible = re.sub(r'title="[^"]*"|<code>.*?</code>', "", page)
    assert "compactness" not in visible


def test_text_from_runs_is_escaped_everywhere_on_the_page(tmp_path: Path) -> None:
    hostile = "<script>alert('x')</script>"
    write_run(
        tmp_path / "a", ROWS[:2], _png(), data=hostile, data_fingerprint="x", model=f'"{hostile}',
        class_names=(hostile, "b", "c"), failures=[Failure(9, 0, hostile)], stop="radius:0.1",
    )  # fmt: skip
    log = tmp_path / "<img src=x onerror=alert(1)> & --><script>.tsv"
    log.write_text("idx\tlabel\tpredict\tradius\n0\t-1\t1\t0.5\n")
    write_report([tmp_path / "a", log], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page
    assert "<img src=x" not in page
    assert "on &lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;</title>" in page
    assert "original: &lt;script&gt;" in page
    assert "&lt;img src=x onerror=alert(1)&gt; &amp; --&gt;&lt;script&gt;" in page


def test_the_page_has_the_caveats_of_the_curves(tmp_path: Path) -> None:
    undecided = dataclasses.replace(ROWS[1], counts=(8, 624, 8), stopped="budget")
    failures = [Failure(9, 0, "out of memory")]
    write_run(tmp_path / "a", [ROWS[0], undecided], failures=failures, stop="width:0.01")
    write_run(tmp_path / "b", ROWS, partition_text="none", stop="radius:0.1,0.25")
    report = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "Points instead of a curve: sampling stopped as soon as it was decided" in page
    assert "(RS at 0.1, 0.25)" in page
    assert "The budget ran out before some images were decided (1 of 3 for slic)" in page
    assert "slic: failed: 1 image, counted as not certified" in page
    assert "certified with the correct label" in page
    assert report.summaries[0].images == 3  # leaving out the failed image could flatter the method
    write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "r.md")
    for note in report.notes():
        assert f"{note}." in page
        assert f"{note}." in (tmp_path / "r.md").read_text()


def test_plain_runs_with_the_same_noise_have_separate_tiles(tmp_path: Path) -> None:
    rows = [make_row(0, 0, (750, 200, 50)), make_row(0, 0, (950, 50, 0))]  # for example, of two models
    for name, row in zip(("a", "b"), rows, strict=True):
        write_run(tmp_path / name, [row], _png(), partition_text="none", data_fingerprint="x")
    write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert [page.count(f"radius {round_down(row.radius)}") for row in rows] == [1, 1]


def test_unlabelled_rows_count_as_certified_and_the_page_says_so(tmp_path: Path) -> None:
    rows = [make_row(0, None, (100, 900)), make_row(1, None, (500, 500))]
    report = write_report([write_run(tmp_path / "run", rows)], tmp_path / "r.html", radii=[0.0, 0.3])
    assert report.summaries[0].accuracy == (0.5, 0.5)
    assert "slic: no labels are known, so every certified image counts" in (tmp_path / "r.html").read_text()


def test_special_characters_in_names(tmp_path: Path) -> None:
    row = make_row(5, 2, (50, 50, 900))
    for name, partition in (("a", SETTINGS.partition_text), ("b", "none")):
        write_run(tmp_path / name, [row], _png(), partition_text=partition, data_fingerprint="x")
    for order in (["a", "b"], ["b", "a"]):  # no tile may replace that of another method
        write_report([tmp_path / name for name in order], tmp_path / "r.html")
        page = (tmp_path / "r.html").read_text()
        assert "<owl>" not in page
        assert page.count(f"&lt;owl&gt; ✓, radius {round_down(row.radius)}") == 2
    write_run(tmp_path / "c", [make_row(5, 2, (10, 10, 980))], _png(), data_fingerprint="other")
    write_report([tmp_path / "b", tmp_path / "c"], tmp_path / "r.html")
    assert "Not shown, since they were certified on other images: slic." in (tmp_path / "r.html").read_text()
    (tmp_path / "$x$[b].tsv").write_text("idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n")
    assert "wrote" in pprs("report", tmp_path / "$x$[b].tsv", "--out", tmp_path / "[b].png").stdout
    assert (tmp_path / "[b].png").exists()


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((12, 12), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_pipes_are_written_to_and_not_replaced(run: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        content = reader.submit(pipe.read_text)
        pprs("report", run, "--format", "md", "--out", pipe)
        assert "| " in content.result()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_full_device_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", lambda *_: pytest.fail("root would have replaced the machine's device"))
    assert "disk is full" in pprs("report", run, "--format", "md", "--out", "/dev/full", code=2).stderr


def test_errors_name_the_cause_of_an_unreadable_source(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("some\tother\ttable\n1\t2\t3\n")
    with pytest.raises(PprsError, match="needs the columns idx, label"):
        read_frame(tmp_path / "a.tsv")
    head = "idx\tlabel\tpredict\tradius\n"
    for rows in ("0\t1\t1\tinf\n", "0\t1\t1\t-1\n", "0\t1\t1\tnan\n", "0\t1\n"):
        (tmp_path / "a.tsv").write_text(head + rows)
        with pytest.raises(PprsError, match="cannot be read as exported rows"):
            read_frame(tmp_path / "a.tsv")
    (tmp_path / "a.tsv").write_text("idx\tlabel\tradius\n0\t1\t0.5\n")
    with pytest.raises(PprsError, match="needs the columns"):
        read_frame(tmp_path / "a.tsv")
    (tmp_path / "b.json").write_text("{broken")
    with pytest.raises(PprsError, match="cannot be read as exported rows"):
        read_frame(tmp_path / "b.json")
    with pytest.raises(PprsError, match="there is no file"):
        read_frame(tmp_path / "c.csv")
    write_run(tmp_path / "empty", [])
    with pytest.raises(PprsError, match="no rows yet"):
        read_frame(tmp_path / "empty")


@pytest.fixture(scope="module")
def certified(digits_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Real runs of two methods on a few digits."""
    folder = tmp_path_factory.mktemp("runs")
    runs = []
    for name, partition in (("rs", "none"), ("slic", "slic:n_segments=50")):
        runs.append(folder / name)
        pprs("certify", "--model", digits_model, "--data", "builtin:mnist5k", "--sigma", 0.25, "--partition", partition,
             "--n", 64, "--limit", 8, "--out", runs[-1])  # fmt: skip
    return runs


def test_page_is_self_contained_and_shows_images(certified: list[Path], tmp_path: Path) -> None:
    write_report(certified, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page
    assert page.count('src="data:image/png') == 6 * 4  # original, noisy, superpixels, averaged
    row = open_run(certified[1]).rows()[0]
    assert f"radius {round_down(row.radius)}" in page or row.prediction is None


@pytest.mark.browser
def test_page_opens_in_a_browser(certified: list[Path], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    assert browser is not None
    write_report(certified, tmp_path / "r.html")
    result = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
         (tmp_path / "r.html").as_uri()],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert "Certified accuracy against radius" in result.stdout
    assert result.stdout.count("<figure>") == 6 * 4
    assert "</svg>" in result.stdout


def test_run_export_and_report_agree(certified: list[Path], tmp_path: Path) -> None:
    out = pprs("export", certified[1], "--format", "csv").stdout
    rows = list(csv.DictReader(out.splitlines()))
    assert len(rows) == 8
    assert 20 < float(rows[0]["mean_segments"]) < 90
    output = pprs("report", *certified, "--out", tmp_path / "r.md", "--radii", "0,0.1").stdout
    assert " slic " in output
    assert "slic:n_segments=50," in (tmp_path / "r.md").read_text()
    share = sum(int(r["correct"]) for r in rows) / 8
    assert f"| {100 * share:.1f} (" in (tmp_path / "r.md").read_text()


def test_the_page_names_methods_whose_region_is_a_cylinder(tmp_path: Path) -> None:
    for name, partition in (("ball", "slic:n_segments=50"), ("fixed", "grid:size=4")):
        write_run(tmp_path / name, ROWS[:1], partition_text=partition)
    write_report([tmp_path / "ball"], tmp_path / "ball.html")
    write_report([tmp_path / "ball", tmp_path / "fixed"], tmp_path / "both.html")
    assert "cylinder" not in (tmp_path / "ball.html").read_text()
    assert (
        "The segments of grid are fixed, so the certified region of these methods is a cylinder"
        in (tmp_path / "both.html").read_text()
    )
