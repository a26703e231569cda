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
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from helpers import pprs
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import f1_score

from pprs import PprsError
from pprs.certificate import round_down
from pprs.runs.store import Row, Run
from pprs.report import read, read_all, write_report
from pprs.runs.export import export
from pprs.report.figures import draw_curves
from pprs.runs.frame import Method
from pprs.metrics import average_radius, band, certified_accuracy, certified_f1, paired

SETTINGS = {
    "model": "m", "data": "d", "noise": "gaussian:sigma=0.5", "partition": "slic:n_segments=50", "n0": 100, "n": 1000,
    "alpha": 0.001, "seed": 0, "class_names": ["cat", "dog", "<owl>"],
}  # fmt: skip
ROWS = [
    Row(0, 0, 0, 0, 0.30000000000000004, 0.9, (900, 100), 48.5, 16.1, 0.5),
    Row(1, 1, 1, 1, 0.7, 0.95, (50, 950), 47.5, 16.5, 0.5),
    Row(2, 1, 0, 0, 0.2, 0.8, (800, 200), 48.0, 16.3, 61.25),
    Row(5, 2, None, 2, 0.0, 0.4, (500, 500), 48.0, 16.3, 0.5),
]


def method(label: list[int], prediction: list[int], radius: list[float]) -> Method:
    n = len(label)
    nan = np.full(n, np.nan)
    return Method(
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


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with Run.begin(folder, SETTINGS) as made:
        for row in ROWS:
            made.add(row)
    return folder


def test_a_path_may_be_a_text(run: Path) -> None:
    assert len(read(str(run))) == len(read(run)) > 0


def test_cohens_log_gives_cohens_curve(golden: Path) -> None:
    log = read(golden / "cohen_cifar10_sigma_0.25.tsv")
    assert len(log) == 500
    for r, expected in json.loads((golden / "cohen_curve.json").read_text())["certified_accuracy"].items():
        assert certified_accuracy(log, np.array([float(r)]))[0] == pytest.approx(expected, abs=1e-12)


def test_certified_accuracy_counts_the_radius_itself() -> None:
    m = method([0, 0, 1, 1], [0, 0, 0, -1], [0.5, 0.25, 0.9, 0.0])
    assert certified_accuracy(m, np.array([0.0, 0.25, 0.2500001, 0.5, 0.51])).tolist() == [0.5, 0.5, 0.25, 0.25, 0.0]
    assert average_radius(m) == pytest.approx(0.75 / 4)


@given(st.integers(0, 40), st.integers(0, 3))
def test_certified_f1_is_macro_f1_with_the_uncertified_as_a_class_of_their_own(seed: int, tenth: int) -> None:
    rng = np.random.default_rng(seed)
    label, prediction = rng.integers(0, 4, 30), rng.integers(-1, 4, 30)
    radius = np.where(prediction < 0, 0, rng.random(30))
    r = tenth / 10
    said = np.where((prediction >= 0) & (radius >= r), prediction, 99)
    expected = f1_score(label, said, labels=np.unique(label), average="macro", zero_division=0)
    assert certified_f1(method(label, prediction, radius), r) == pytest.approx(expected)


def test_no_point_of_a_method_decided_at_one_radius_is_cut_off() -> None:
    decided = dataclasses.replace(method([0, 0], [0, 0], [0.1, 0.05]), settings={"stop": "radius:0.1"})
    axes = Figure().subplots()
    draw_curves(axes, [decided] * 6)
    drawn = [x for container in axes.containers for x in container[0].get_xdata()]
    assert len(drawn) == 6
    low, high = axes.get_xlim()
    assert low < min(drawn)
    assert max(drawn) < high - 0.02 * (high - low)


def test_band_is_the_exact_interval() -> None:
    low, high = band(np.array([0.0, 0.5, 1.0]), 20)
    assert low[0] == 0
    assert high[2] == 1
    assert (low[1], high[1]) == (pytest.approx(0.27196, abs=1e-5), pytest.approx(0.72804, abs=1e-5))
    assert high[0] == pytest.approx(1 - 0.025 ** (1 / 20))


@given(st.floats(0, 1e4))
def test_rounding_is_down(radius: float) -> None:
    shown = Decimal(round_down(radius))
    assert shown <= Decimal(radius) < shown + Decimal("0.001")


def test_export_tsv_is_cohens_format(run: Path, tmp_path: Path) -> None:
    with Run.read(run) as opened:
        text = export(opened, "tsv", None)
    lines = text.splitlines()
    assert lines[0] == "idx\tlabel\tpredict\tradius\tcorrect\ttime"
    assert lines[1].startswith("0\t0\t0\t0.300000\t1\t0:00:00.5")
    assert lines[2].startswith("1\t1\t1\t0.699999\t1\t")  # the double below 0.7, rounded down
    assert lines[3] == "2\t1\t0\t0.200000\t0\t0:01:01.250000"
    assert lines[4].startswith("5\t2\t-1\t0.000000\t0\t")
    for line, row in zip(lines[1:], ROWS, strict=True):
        assert Decimal(line.split("\t")[3]) <= Decimal(row.radius)


@pytest.mark.parametrize("kind", ["tsv", "csv", "parquet", "json"])
def test_exported_rows_draw_the_same_report(run: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / f"rows.{kind}"
    with Run.read(run) as opened:
        export(opened, kind, out)
    a, b = read(run), read(out)
    for name in ("idx", "label", "prediction"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    if kind == "tsv":
        assert (b.radius <= a.radius).all()
    else:
        np.testing.assert_array_equal(a.radius, b.radius)
        np.testing.assert_array_equal(a.segments, b.segments)
        assert b.name == "slic:n_segments=50"
        assert b.settings["noise"] == SETTINGS["noise"]


def test_methods_are_compared_only_on_the_same_images() -> None:
    one, other = method([0, 1, 2], [0, 1, 2], [0.5, 0.4, 0.3]), method([0, 1, 2], [0, 1, 1], [0.2, 0.2, 0.2])
    for data, count in (("mnist", 1), ("cifar10", 0)):
        pair = [
            dataclasses.replace(one, settings={"data": "mnist"}),
            dataclasses.replace(other, settings={"data": data}),
        ]
        assert len(paired(pair)) == count
    (p,) = paired([dataclasses.replace(m, settings={"data": "mnist"}) for m in (one, other)])
    apart = np.array([0.3, 0.2, 0.3])
    assert p.ahead == pytest.approx(apart.mean())
    assert p.error == pytest.approx(
        4.3027 * apart.std(ddof=1) / np.sqrt(3), rel=1e-4
    )  # Student, two degrees of freedom
    assert paired([one, other]) == []  # of what data they are, nobody says


def test_formats(run: Path, tmp_path: Path) -> None:
    summaries, radii = write_report([run], tmp_path / "r.json", radii=[0.0, 0.25, 0.5])
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["radii"] == radii == [0.0, 0.25, 0.5]
    assert content["methods"][0]["accuracy"] == [0.5, 0.5, 0.25]
    write_report([run, run], tmp_path / "r.md")
    table = (tmp_path / "r.md").read_text().splitlines()
    assert len({line.count("|") for line in table[:4]}) == 1
    assert table[-1].count("| +0.0000 | ± 0.0000 |") == 1  # a run against itself, image by image
    assert "50.0 (7–93)" in table[2]
    write_report([run], tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    write_report([run], tmp_path / "r.svg")
    first = (tmp_path / "r.svg").read_bytes()
    assert b"<svg" in first
    with pytest.raises(PprsError, match="html, json, md, png, svg"):
        write_report([run], tmp_path / "r.doc")
    assert summaries[0].segments == pytest.approx(48)


def test_names_tell_runs_apart(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with Run.begin(other, {**SETTINGS, "noise": "gaussian:sigma=1.0"}) as made:
        made.add(ROWS[0])
    assert [m.name for m in read_all([run, other])] == [
        "slic:n_segments=50, gaussian:sigma=0.5",
        "slic:n_segments=50, gaussian:sigma=1.0",
    ]


def test_unlabelled_rows_count_as_certified_and_the_page_says_so(tmp_path: Path) -> None:
    with Run.begin(tmp_path / "run", SETTINGS) as made:
        made.add(Row(0, None, 1, 1, 0.4, 0.9, (1, 9), None, None, 0.1))
        made.add(Row(1, None, None, 1, 0.0, 0.3, (5, 5), None, None, 0.1))
    summaries, _ = write_report([tmp_path / "run"], tmp_path / "r.html", radii=[0.0, 0.3])
    assert summaries[0].accuracy == (0.5, 0.5)
    assert "No labels are known" in (tmp_path / "r.html").read_text()


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    for name, settings in (("a", SETTINGS), ("b", {**SETTINGS, "partition": "none"})):
        with Run.begin(tmp_path / name, {**settings, "data_fingerprint": "x"}) as made:
            made.add(Row(5, 2, 2, 2, 0.4, 0.9, (1, 9), None, None, 0.1), _png())
    for order in (["a", "b"], ["b", "a"]):  # no method's verdict may hide another's
        write_report([tmp_path / name for name in order], tmp_path / "r.html")
        page = (tmp_path / "r.html").read_text()
        assert "<owl>" not in page
        assert page.count("&lt;owl&gt; ✓, radius 0.4") == 2
    with Run.begin(tmp_path / "c", {**SETTINGS, "data_fingerprint": "other"}) as made:
        made.add(Row(5, 2, 2, 2, 0.7, 0.9, (1, 9), None, None, 0.1), _png())
    write_report([tmp_path / "b", tmp_path / "c"], tmp_path / "r.html")
    assert "Of other data, and not shown: slic:n_segments=50" in (tmp_path / "r.html").read_text()
    (tmp_path / "$x$[b].tsv").write_text("idx\tlabel\tpredict\tradius\n0\t1\t1\t0.5\n")
    assert "wrote" in pprs("report", tmp_path / "$x$[b].tsv", "--out", tmp_path / "[b].png").stdout
    assert (tmp_path / "[b].png").exists()


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((12, 12), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_devices_are_written_to_and_not_replaced(run: Path, tmp_path: Path) -> None:
    device = tmp_path / "full"
    try:
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 7))  # as /dev/full
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("device files cannot be made or used here")
    told = pprs("report", run, "--format", "md", "--out", device, code=2).stderr
    assert "disk is full" in told
    assert stat.S_ISCHR(device.stat().st_mode)


def test_bad_sources_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("some\tother\ttable\n1\t2\t3\n")
    with pytest.raises(PprsError, match="needs the columns idx, label"):
        read(tmp_path / "a.tsv")
    head = "idx\tlabel\tpredict\tradius\n"
    for rows in ("0\t1\t1\tinf\n", "0\t1\t1\t-1\n", "0\t1\t1\tnan\n", "0\t1\n"):
        (tmp_path / "a.tsv").write_text(head + rows)
        with pytest.raises(PprsError, match="cannot be read as exported rows"):
            read(tmp_path / "a.tsv")
    (tmp_path / "a.tsv").write_text("idx\tlabel\tradius\n0\t1\t0.5\n")
    with pytest.raises(PprsError, match="needs the columns"):
        read(tmp_path / "a.tsv")
    (tmp_path / "b.json").write_text("{broken")
    with pytest.raises(PprsError, match="cannot be read as exported rows"):
        read(tmp_path / "b.json")
    with pytest.raises(PprsError, match="there is no file"):
        read(tmp_path / "c.csv")
    Run.begin(tmp_path / "empty", SETTINGS).close()
    with pytest.raises(PprsError, match="no rows yet"):
        read(tmp_path / "empty")


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


def test_page_is_self_contained_and_shows_pictures(certified: list[Path], tmp_path: Path) -> None:
    write_report(certified, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "<script" not in page
    assert page.count('src="data:image/png') == 6 * 4  # original, noisy, superpixels, averaged
    with Run.read(certified[1]) as run:
        row = run.rows()[0]
    assert f"radius {round_down(row.radius)}" in page or row.prediction is None


def test_page_opens_in_a_browser(certified: list[Path], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    write_report(certified, tmp_path / "r.html")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
         (tmp_path / "r.html").as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "Certified accuracy against radius" in done.stdout
    assert done.stdout.count("<figure>") == 6 * 4
    assert "</svg>" in done.stdout


def test_run_export_and_report_agree(certified: list[Path], tmp_path: Path) -> None:
    out = pprs("export", certified[1], "--format", "csv").stdout
    rows = list(csv.DictReader(out.splitlines()))
    assert len(rows) == 8
    assert 20 < float(rows[0]["mean_segments"]) < 90
    told = pprs("report", *certified, "--out", tmp_path / "r.md", "--radii", "0,0.1").stdout
    assert "slic:n_segments=50" in told
    share = sum(int(r["correct"]) for r in rows) / 8
    assert f"| {100 * share:.1f} (" in (tmp_path / "r.md").read_text()


def test_the_page_says_where_the_region_is_a_cylinder(tmp_path: Path) -> None:
    for name, partition in (("ball", "slic:n_segments=50"), ("fixed", "grid:size=4")):
        with Run.begin(tmp_path / name, SETTINGS | {"partition": partition}) as made:
            made.add(ROWS[0])
    write_report([tmp_path / "ball"], tmp_path / "ball.html")
    write_report([tmp_path / "ball", tmp_path / "fixed"], tmp_path / "both.html")
    assert "cylinder" not in (tmp_path / "ball.html").read_text()
    assert "are fixed, so there the certified region is a cylinder" in (tmp_path / "both.html").read_text()
