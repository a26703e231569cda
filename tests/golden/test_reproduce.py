"""The plan, `pprs reproduce` on the quick plan, and the committed results."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
import re
import runpy
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
import torch
from helpers import pprs
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from pprs import PprsError, open_run
from pprs.data import ImageSet, open_dataset
from pprs.data.arrays import Arrays
from pprs.noise import noise_of
from pprs.report.table import NONE, Table, format_radius
from pprs.reproduction import Results, charts, draw_experiment, experiment_cells, models_table, read_plan, reproduce
from pprs.reproduction.layouts import SAMPLED
from pprs.reproduction.match import LEAST, MOST, matching_sigma
from pprs.reproduction.plan import Data, Line, ModelSpec, ReproductionPlan
from pprs.reproduction.results import MANIFEST, _read_data
from pprs.reproduction.run import Reproduction
from pprs.reproduction.tables import accuracy_gain, gallery_table, most_common_share
from pprs.runs import RunFrame, RunSettings, read_frame
from pprs.runs.export import JOINED
from pprs.smoothing.sampling import Sampling, check_radii_attainable

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
NAMES = (
    "table1",
    "curves",
    "methods",
    "segments",
    "sigma",
    "noises",
    "training",
    "adapt",
    "dither",
    "gallery",
)  # of the quick plan
QUICK = ROOT / "src" / "pprs" / "reproduction" / "quick.toml"
ADAPTED_PLAN = """
[model.digits-bias]
label = "bias"
of = "digits"
adapt = "bias"
noise = 0.5
partition = "slic/soft/shifts:k=4"
images = 100
"""


# The first test that needs it carries out the quick plan.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def quick(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The folder of the quick plan. Tests that change it work on a copy."""
    return once("quick", lambda out: pprs("reproduce", "all", "--quick", "--out", out, "--threads", 1))


def copy_rows(source: Path, target: Path) -> Results:
    """Copy the manifest and rows, but no models, runs or figures."""
    target.mkdir(exist_ok=True)
    for path in (source / MANIFEST, *source.glob("*.parquet")):
        shutil.copy(path, target)
    return Results(target)


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = folder / MANIFEST
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def modification_times(paths: Iterable[Path]) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in paths if path.is_file()}


def test_every_kind_of_figure_and_table(quick: Path) -> None:
    page = (quick / "README.md").read_text()
    for name in NAMES:
        kind, data = "png" if name == "gallery" else "svg", "dither-digits" if name == "dither" else "digits"
        assert (quick / "tables" / f"{name}-{data}.csv").stat().st_size > 100, name
        assert (quick / "figures" / f"{name}-{data}.{kind}").stat().st_size > 100, name
        assert f"(figures/{name}-{data}.{kind})" in page
    assert len(list((quick / "figures").glob("[!.]*"))) == len(NAMES)
    adapted = list(csv.DictReader((quick / "tables" / "adapt-digits.csv").read_text().splitlines()))
    assert [line["method"] for line in adapted] == ["RS", "soft, 4 shifts", "soft, 4 shifts (adapted)"]
    assert adapted[2]["ACR, unadapted"] == adapted[1]["ACR"]
    gain = float(adapted[2]["ACR"]) - float(adapted[1]["ACR"])
    assert float(adapted[2]["ACR gain"]) == pytest.approx(gain, abs=0.0011)
    table = (quick / "tables" / "table1-digits.md").read_text()
    for method in ("RS", "SLIC", "Quickshift", "Felzenszwalb", "soft, 4 shifts", "static grid", "best blur"):
        assert f"| {method} |" in table
    assert "| 94.9 |" in table  # the paper's accuracy of SLIC
    assert "| digits-partition |" in page


def test_a_second_call_certifies_nothing(quick: Path) -> None:
    files = [quick / MANIFEST, quick / "digits.parquet", *(quick / "runs").rglob("*")]
    before, page = modification_times(files), (quick / "README.md").read_text()
    pprs("reproduce", "table1,noises", "--quick", "--out", quick)
    assert (quick / "README.md").read_text() == page  # including the experiments of the first call
    assert modification_times(files) == before


def test_figures_are_drawn_from_rows_only(quick: Path, tmp_path: Path) -> None:
    copy_rows(quick, tmp_path)
    pprs("reproduce", "all", "--quick", "--out", tmp_path, "--draw-only")
    for kind in ("tables", "figures"):
        for path in sorted((quick / kind).glob("[!.]*")):  # hidden files are being written by another test
            assert (tmp_path / kind / path.name).read_bytes() == path.read_bytes(), path.name


def test_certificates_of_counted_votes_are_tabulated_as_their_runs_have_them(quick: Path) -> None:
    lines = list(csv.DictReader((quick / "tables" / "dither-dither-digits.csv").read_text().splitlines()))
    names = ["Gaussian filter", "Gaussian filter, template=random", "soft, 4 shifts", "soft, 4 shifts (adapted)"]
    assert [line["method"] for line in lines] == [*names, "others"]
    assert lines[-1]["L1 0.5, %"] == "50.0"
    entries = {e.cell.name: e for e in Results(quick).manifest().entries.values() if e.cell.is_counted}
    for line, cell in zip(
        lines, sorted(entries, key=lambda name: ("adapted" in name, "shifted" in name, "random" in name)), strict=False
    ):
        (folder,) = (quick / "runs").glob(f"{cell}-*")
        rows = open_run(folder / "0").rows()
        assert len(rows) == 10
        share = np.mean([row.correct and row.grey_levels >= 255 for row in rows])
        assert float(line["L1 1, %"]) == pytest.approx(100 * share)
        assert float(line["any 1 pixel, %"]) == pytest.approx(
            100 * np.mean([row.correct and row.offsets >= 255 for row in rows])
        )
        assert float(line["average L1 radius"]) == pytest.approx(
            np.mean([row.radius * row.correct for row in rows]), abs=0.001
        )
        assert line["L1 2, %"] == ""  # so many votes cannot certify it


def test_manifest_and_rows_agree(quick: Path, tmp_path: Path) -> None:
    results = copy_rows(quick, tmp_path)
    assert not results.problems()
    entries = {key: e for key, e in results.manifest().entries.items() if e.cell.data == "digits"}
    rows = pandas.read_parquet(tmp_path / "digits.parquet")
    assert len(rows) == sum(entry.rows for entry in entries.values())
    assert set(rows.cell) == entries.keys()
    first = next(iter(entries))
    for changed, message in (
        (rows.assign(radius=rows.radius.where(rows.index > 0, 9.0)), "rows are not those"),
        (rows[rows.cell != first], "but there are 0"),
        (rows.assign(cell=rows.cell.where(rows.cell != first, "another")), "has rows of another"),
    ):
        changed.to_parquet(tmp_path / "digits.parquet")
        assert any(message in problem for problem in results.problems())


def test_a_cell_whose_join_was_interrupted_is_joined_again_from_its_run(quick: Path, tmp_path: Path) -> None:
    out = shutil.copytree(quick, tmp_path / "out", ignore=shutil.ignore_patterns(".*"))
    plan = read_plan(quick=True)
    cell, other, *_ = experiment_cells(plan, plan.experiments["curves"], "digits", (0.25,)).values()
    committed = Results(quick).manifest().entries[plan.cell_key(cell)]

    # The parquet file was written, and the manifest was not.
    edit_manifest(out, lambda content: content["cells"].pop(committed.key))
    work = Reproduction(plan, out)
    work.rows(cell)
    # The parquet file is damaged.
    (out / "digits.parquet").write_bytes(b"damaged")
    assert len(work.rows(cell)) == len(work.rows(other)) == 20
    assert work.results.manifest().entries[committed.key] == committed


def test_files_that_cannot_be_read_or_are_not_ours_are_not_replaced(tmp_path: Path) -> None:
    cell = read_plan(quick=True).cell(read_plan(quick=True).experiments["curves"], "digits", Line("rs"), 0.25)
    entry = next(e for e in Results(RESULTS).manifest().entries.values() if e.cell.data == "cat")
    rows = Results(RESULTS).table(entry)
    rows = pyarrow.table({name: rows[JOINED.get(name, name)] for name in (*SAMPLED.rows, *SAMPLED.settings)})

    def add(folder: Path) -> None:
        Results(folder).add(cell, "key", rows, network="", images="")

    other = tmp_path / "digits.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), other)
    content = other.read_bytes()
    with pytest.raises(PprsError, match="was not written by `pprs reproduce`"):
        add(tmp_path)
    assert other.read_bytes() == content
    with pytest.raises(PprsError, match="cannot read .*Make it readable"):
        _read_data(tmp_path / "missing.parquet")
    (tmp_path / "file").touch()
    with pytest.raises(PprsError, match="A part of that path is a file"):
        add(tmp_path / "file" / "below")


def test_one_cell_can_be_taken_out_of_a_joined_file(quick: Path, tmp_path: Path) -> None:
    with pytest.raises(PprsError, match="joins the rows of"):
        read_frame(quick / "digits.parquet")
    rows, results = pandas.read_parquet(quick / "digits.parquet"), Results(quick)
    entry = next(e for e in results.manifest().entries.values() if e.cell.method == "slic")
    rows[rows.cell == entry.key].to_parquet(tmp_path / "one.parquet")
    frame = read_frame(tmp_path / "one.parquet")
    assert frame.settings == results.frame(entry).settings
    assert frame.radius.tolist() == results.frame(entry).radius.tolist()
    pprs("report", tmp_path / "one.parquet", "--out", tmp_path / "r.md")


def test_a_folder_in_the_earlier_form_opens(quick: Path, tmp_path: Path) -> None:
    """It had one parquet file per cell in rows/, with the stamps in its metadata, and rows/models.json."""
    results = Results(quick)
    manifest = results.manifest()
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "models.json").write_text(json.dumps(dict(manifest.models)))
    for entry in manifest.entries.values():
        table = results.table(entry)
        if entry.cell.is_counted:
            continue
        names = [*table.schema.names[8:22], *(JOINED.get(name, name) for name in SAMPLED.settings)]
        old = table.select(names).rename_columns([*table.schema.names[8:22], *SAMPLED.settings])
        stamps = {"pprs": entry.key, "pprs.network": entry.network, "pprs.pictures": entry.images}
        path = tmp_path / "rows" / f"{entry.cell.name}.parquet"
        pyarrow.parquet.write_table(old.replace_schema_metadata(stamps), path)
    before = modification_times((tmp_path / "rows").iterdir())
    pprs("reproduce", "curves,table1", "--quick", "--out", tmp_path, "--draw-only")
    for name in ("curves-digits", "table1-digits"):
        assert (tmp_path / "tables" / f"{name}.md").read_bytes() == (quick / "tables" / f"{name}.md").read_bytes()
    converted = Results(tmp_path).manifest()
    assert converted.models == manifest.models
    assert converted.entries.items() <= dict(manifest.entries).items()
    assert not Results(tmp_path).problems()
    assert modification_times((tmp_path / "rows").iterdir()) == before


def test_rows_of_another_plan_are_not_used(quick: Path, tmp_path: Path) -> None:
    copy_rows(quick, tmp_path)
    other = tmp_path / "other.toml"
    other.write_text(QUICK.read_text().replace("n = 100\n", "n = 200\n"))
    output = pprs("reproduce", "curves", "--plan", other, "--out", tmp_path, "--draw-only", code=2)
    assert "only those of another plan or network" in output.stderr


def test_rows_of_another_network_are_not_used(quick: Path, tmp_path: Path) -> None:
    """Training again gives another network, although the plan is the same."""
    models = copy_rows(quick, tmp_path).models()
    assert models["digits"]["digest"] != models["digits-noise"]["digest"]
    edit_manifest(tmp_path, lambda content: content["models"]["digits"].update(digest="0" * 16))
    output = pprs("reproduce", "curves", "--quick", "--out", tmp_path, "--draw-only", code=2)
    assert "only those of another plan or network" in output.stderr


@pytest.mark.parametrize(
    ("stamp", "words"), [("network", "networks called digits"), ("images", "images called digits")]
)
def test_rows_of_different_networks_or_images_are_not_compared(
    quick: Path, tmp_path: Path, stamp: str, words: str
) -> None:
    copy_rows(quick, tmp_path)
    plan = read_plan(quick=True)
    cells = list(experiment_cells(plan, plan.experiments["curves"], "digits", (0.25,)).values())

    def edit(content: dict[str, Any]) -> None:
        content["cells"][plan.cell_key(cells[1])][stamp] = "another"
        content["models"].clear()  # networks that this plan did not train, so that neither is known to be current

    edit_manifest(tmp_path, edit)
    work = Reproduction(plan, tmp_path, draw_only=True)
    work.rows(cells[0])
    with pytest.raises(PprsError, match=f"certified with different {words}"):
        work.rows(cells[1])


def classes_folder(path: Path, classes: int, images: int) -> Path:
    """Images in one subfolder per class, as ImageNet's are, without a training split."""
    for label in range(classes):
        (path / f"c{label}").mkdir(parents=True)
        for i in range(images):
            Image.new("L", (8, 8), 20 * label + i).save(path / f"c{label}" / f"{i}.png")
    return path


def test_groups_of_labels(tmp_path: Path) -> None:
    plan = read_plan(quick=True)
    folder = classes_folder(tmp_path / "f", 5, 4)
    data = Data(str(folder), 8, stride=2, labels_at_a_time=2)  # 8 of 20 images, two of each of the first four classes
    for spec, groups in (
        (data, [("0,1", 4), ("2,3", 4)]),
        (dataclasses.replace(data, images=5), [("0,1,2", 5)]),  # the label that is left over joins the group before it
        (dataclasses.replace(data, images=10), [("0,1", 4), ("2,3,4", 6)]),
        (dataclasses.replace(data, labels_at_a_time=None, images=3), [(None, 3)]),
    ):
        changed = dataclasses.replace(plan, data={"digits": spec})
        assert Reproduction(changed, tmp_path)._groups("digits", "digits") == groups
    one = dataclasses.replace(plan, data={"digits": dataclasses.replace(data, images=2)})
    with pytest.raises(PprsError, match="give a larger stride"):
        Reproduction(one, tmp_path)._groups("digits", "digits")
    # A network that was not trained on the data is matched by class names.
    known = dataclasses.replace(plan, data={"digits": data}, models={"digits": ModelSpec("net.onnx")})
    words = Reproduction(known, tmp_path)._groups("digits", "digits")
    assert words == [("c0,c1", 4), ("c2,c3", 4)]


def test_a_network_that_is_trained_again_drops_the_rows_of_the_former(tmp_path: Path) -> None:
    """Also with a restricted set of labels, and when a plan with one more cell continues in the folder."""
    text = QUICK.read_text()
    text = text.replace("images = 20", 'images = 4\nlabels = "3,7"').replace("epochs = 3", "epochs = 1")
    text = text[: text.index("[experiment.table1]")]
    curves = """[experiment.curves]
title = "Curves"
draw = "curves"
lines = [{}]
sigmas = {{ digits = [0.25] }}
"""
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(text + curves.format('"rs"'))
    pprs("reproduce", "curves", "--plan", plan, "--out", out, "--threads", 1)
    pprs("reproduce", "curves", "--plan", plan, "--out", out, "--threads", 1, "--draw-only")
    results = Results(out)
    trained = results.models()["digits"]["digest"]

    # As after `rm -r models` on a machine that trains another network: the folder has rows of the former one.
    def edit(content: dict[str, Any]) -> None:
        content["models"]["digits"]["digest"] = "0" * 16
        for values in content["cells"].values():
            values["network"] = "0" * 16

    edit_manifest(out, edit)
    (out / "models" / "digits.safetensors").unlink()
    plan.write_text(text + curves.format('"rs", "slic"'))
    output = pprs("reproduce", "curves", "--plan", plan, "--out", out, "--threads", 1)
    assert "certifying its earlier rows again" in output.stderr + output.stdout
    assert results.models()["digits"]["digest"] == trained
    assert {entry.network for entry in results.manifest().entries.values()} == {trained}
    assert len(results.manifest().entries) == 2
    assert not results.problems()

    edit_manifest(out, lambda content: content["models"]["digits"].update(digest="0" * 16))
    plan.write_text(text + curves.format('"rs", "slic", "soft"'))
    output = pprs("reproduce", "curves", "--plan", plan, "--out", out, "--threads", 1, code=2)
    assert "is not the network that was made in this folder" in output.stderr.replace("\n", " ")


def test_training_and_choosing_on_certified_images_is_refused(tmp_path: Path) -> None:
    plan = read_plan(quick=True)
    spec = Data(str(classes_folder(tmp_path / "f", 2, 3)), 6)
    plan = dataclasses.replace(plan, data={"digits": spec})
    work = Reproduction(plan, tmp_path)
    with pytest.raises(PprsError, match="no training split"):
        work.model("digits")
    cell = plan.cell(plan.experiments["curves"], "digits", Line("blur"), 0.25)
    with pytest.raises(PprsError, match="no training split"):
        work._partition(cell)
    without = dataclasses.replace(plan, data={"digits": dataclasses.replace(spec, training=False)})
    assert Reproduction(without, tmp_path)._partition(cell) == cell.partition


def test_a_gallery_without_its_images_has_a_table_only(quick: Path, tmp_path: Path) -> None:
    class WithoutImages(Reproduction):
        def network_inputs(self, data: str) -> ImageSet:
            raise PprsError("no images")

    plan = read_plan(quick=True)
    assert WithoutImages(plan, quick, draw_only=True)._gallery_images("digits") is None
    with pytest.raises(PprsError, match="no images"):
        WithoutImages(plan, quick)._gallery_images("digits")
    rows = Reproduction(plan, quick, draw_only=True).rows
    draw_experiment(plan, plan.experiments["gallery"], "digits", rows, tmp_path, None)
    assert (tmp_path / "tables" / "gallery-digits.md").is_file()
    assert not (tmp_path / "figures").exists()


def test_an_experiment_that_fails_does_not_stop_the_others(quick: Path, tmp_path: Path) -> None:
    copy_rows(quick, tmp_path)
    plan = read_plan(quick=True)
    key = plan.cell_key(plan.cell(plan.experiments["curves"], "digits", Line("rs"), 0.5))
    edit_manifest(tmp_path, lambda content: content["cells"].pop(key))
    output = pprs("reproduce", "curves,noises", "--quick", "--out", tmp_path, "--draw-only", code=2)
    assert "1 of 2 experiments failed:" in output.stderr
    assert (tmp_path / "tables" / "noises-digits.md").is_file()
    assert not (tmp_path / "tables" / "curves-digits.md").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"grid", "blur"]', '"grit", "blur"]', 'unknown method "grit". Did you mean "grid"'),
        ('draw = "sweep"', 'draw = "sweeps"', 'cannot draw "sweeps"'),
        (
            "alpha = 0.001",
            "alpa = 0.001",
            'top level: unknown key "alpa"; did you mean "alpha"? There are: alpha, choose',
        ),
        ("images = 20", "", 'data digits: missing key "images"'),
        ('"slic:n_segments={}"', '"slic:segments={}"', 'no option "segments"'),
        ('partition = "quickshift"', 'partition = "quikshift"', 'unknown partition "quikshift"'),
        ('"noise@rs"', '"noisy@rs"', 'unknown model "digits-noisy"'),
        ('"exponential/rs"', '"laplace/rs"', 'unknown noise "laplace"'),
        ("n0 = 20", "n0 == 20", "is not TOML"),
        ("sigmas = { digits = [0.3] }", "sigmas = { cats = [0.3] }", 'unknown data set "cats"'),
        ('"radius:0.01,0.1"', '"radios:0.1"', "unknown stop rule"),
        ('"radius:0.01,0.1"', '{ digits = "radios:0.1" }', "unknown stop rule"),
        ('"radius:0.01,0.1"', "{ digits = 0.1 }", ": stop.digits: 0.1 is not a text in quotes"),
        ('"radius:0.01,0.1"', "0.1", ": stop: 0.1 is not a text in quotes or a table"),
        (
            '"radius:0.01,0.1"',
            '{ digit = "radius:0.1" }',
            '"stop" names "digit", which has no sigmas in this experiment',
        ),
        (
            "radius = 0.1",
            "radius = 0.2",
            "its radius is 0.2, but its stop rule on digits decides images only at 0.01, 0.1",
        ),
        ("n = 100", 'n = "many"', 'top level: n: "many" is not an integer'),
        ("n = 100", "n = 3", "can never certify"),
        ("choose = { images = 10, samples = 32 }", "choose = 3", "3 is not a table"),
        ("choose = { images = 10, samples = 32 }", "choose = { images = 10 }", 'choose: missing key "samples"'),
        ("choose = { images = 10, samples = 32 }", "choose = { images = 10, samples = 0 }", "must be at least 1"),
        ("sigmas = { digits = [0.3] }", "sigmas = [0.3]", "is not a table"),
        ("sigmas = { digits = [0.3] }", "sigmas = { digits = 0.3 }", ": sigmas.digits: 0.3 is not a list"),
        ("sigmas = { digits = [0.3] }", 'sigmas = { digits = ["0.3"] }', ': sigmas.digits[0]: "0.3" is not a number'),
        ("sigmas = { digits = [0.3] }", "sigmas = { digits = [-0.3] }", "all must be above 0"),
        ("sigmas = { digits = [0.3] }", "", 'has no "sigmas"'),
        ('draw = "counted"', 'draw = "curves"', '"counted" draws lines behind thresholds, and only these'),
        (
            "sigmas = { dither-digits = [512] }",
            "sigmas = { digits = [512] }",
            "digits has lines behind thresholds and others",
        ),
        ("[512]", "[0.5]", "levels"),
        ("[data.dither-digits]", '[data.dither-digits]\ndomain = "signal"', "are drawn of images only"),
        ('"dither:template=random/filter"', '"dither:template=random/blur"', "chosen by samples of noise"),
        ("values = { digits = [9, 36, 150] }", "values = 9", "9 is not a table"),
        ("images = 20", 'images = "20"', 'data digits: images: "20" is not an integer'),
        ("images = 20", "images = 0", "data digits: images must be at least 1, not 0"),
        ("images = 20", "images = 20\nlabels_at_a_time = 1", "labels_at_a_time must be at least 2"),
        ("epochs = 3", "epochs = 0", "model digits: epochs must be at least 1"),
        ("epochs = 3", "epochs = true", "model digits: epochs: true is not an integer"),
        ("epochs = 3", "epochs = 3.0", "model digits: epochs: 3.0 is not an integer"),
        ("epochs = 3", "epochs = 3\nnoise = nan", "model digits: noise: NaN is not a finite number"),
        ("epochs = 3", "epochs = 3\nnoise = true", "model digits: noise: true is not a number"),
        ("epochs = 3", "epochs = 3\nnoise = 2020-01-01", "2020-01-01 is a date"),
        ("images = 20", "images = 20\ntraining = 1", "data digits: training: 1 is not true or false"),
        ("images = 20", 'images = 20\nlables = "a"', 'data digits: unknown key "lables"; did you mean "labels"?'),
        ('"noise@rs"', "3", "3 is not a text in quotes"),
        ('arch = "resnet-small"', 'arch = "resnet-smal"', 'unknown architecture "resnet-smal"'),
        ('data = "digits"', 'data = "digit"', 'model digits: unknown data set "digit". Did you mean "digits"'),
        ('data = "digits"', "", 'neither a "source" nor "data"'),
        ('"slic/soft/shifts:k=2"', '"slik"', 'model digits-partition: unknown partition "slik"'),
        ("[method.rs]", "[method.plain]", 'requires a method "rs"'),
        ("epochs = 3", "epochs = 3\nshift = -1", "shift must be at least 0"),
        ('engine = "torch"', 'engine = "torhc"', 'unknown engine "torhc"'),
        ('source = "builtin:mnist5k"', 'source = "builtin:mnist5k"\ndomain = "signl"', 'unknown domain "signl"'),
        ("seed = 0", "seed = -1", "seed must be at least 0"),
        ("images = 20", "images = 20\nn = 3", "on digits: `n` 3 can never certify"),
        ("images = 20", "images = 20\nn = 11", "on digits: n=11 samples can never certify"),
        ("sigmas = { digits = [0.3] }", "sigmas = { digits = [] }", "at least one sigma"),
        ("sigmas = { digits = [0.3] }", "sigmas = { digits = [0.3] }\nimages = 0", "images must be at least 1"),
        (
            "values = { digits = [9, 36, 150] }",
            "values = { digit = [9] }",
            '"values" names "digit", which has no sigmas',
        ),
        ('"radius:0.01,0.1"', '"radius:0.1,0.9"', "on digits: n=100 samples can never certify a radius of 0.9"),
        ("[experiment.table1]", "[experiment]\nmore = 3\n[experiment.table1]", "3 is not a table"),
    ],
)
def test_mistakes_in_a_plan(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = QUICK.read_text()
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PprsError) as error:
        read_plan(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_mistakes_in_arguments(tmp_path: Path) -> None:
    for words, message in (
        (("tabel1",), 'unknown experiment "tabel1". Did you mean "table1"'),
        (("table1", "--data", "mist"), "the plan has no data set"),
        (("table1", "--data", "cat"), "--data cat: table1 is defined for imagenet, cifar10, mnist, fashion-mnist"),
        (("all", "--data-root", tmp_path / "none"), "is not a folder"),
        (("all", "--plan", tmp_path / "none.toml"), "cannot read the plan"),
    ):
        output = pprs("reproduce", *words, "--out", tmp_path / "out", code=2)
        assert message in output.stderr.replace("\n", " ")
        assert not (tmp_path / "out").exists()
    pprs("reproduce", "all", "--write-plan", tmp_path / "p.toml")
    assert read_plan(tmp_path / "p.toml") == read_plan()


def test_the_papers_plan_covers_what_the_paper_reports() -> None:
    plan = read_plan()
    assert {*NAMES} - {"dither"} <= {*plan.experiments}
    assert set(plan.experiments["table1"].match) == {"imagenet", "cifar10", "mnist", "fashion-mnist"}
    assert plan.experiments["noises"].sigmas["mnist"] == (0.3, 0.5, 0.7)
    assert (
        plan.experiments["noises"].sigmas["imagenet"]
        == plan.experiments["noises"].sigmas["cifar10"]
        == (0.12, 0.2, 0.5)
    )
    assert plan.n >= 1000
    assert plan.data["mnist"].images >= 200 <= plan.data["fashion-mnist"].images
    names = [
        cell.name
        for e in plan.experiments.values()
        for d in e.sigmas
        for cell in experiment_cells(plan, e, d, e.sigmas[d]).values()
    ]
    assert all(name == name.replace("/", "") for name in names)


def test_the_papers_plan_has_samples_for_all_its_radii() -> None:
    plan, grey, large = read_plan(), 28 * 28, 3 * 224 * 224
    pixels = {
        "mnist": grey,
        "fashion-mnist": grey,
        "digits": grey,
        "cifar10": 3 * 32 * 32,
        "imagenet": large,
        "cat": large,
    }
    for experiment in plan.experiments.values():
        for data, sigmas in experiment.sigmas.items():
            spec = plan.data[data]
            for cell in experiment_cells(plan, experiment, data, sigmas).values():
                if cell.is_counted:
                    continue
                sampling = Sampling(spec.n0 or plan.n0, spec.n or plan.n, plan.alpha, stop=cell.stop)
                check_radii_attainable(
                    sampling, noise_of(cell.noise, cell.sigma), pixels.get(data.removeprefix("adapt-"), 150), 10
                )


def test_keys_change_with_what_rows_depend_on() -> None:
    plan = read_plan()
    cell = plan.cell(plan.experiments["curves"], "mnist", Line("slic"), 0.25)
    for other in (
        plan.cell(plan.experiments["curves"], "mnist", Line("slic"), 0.5),
        plan.cell(plan.experiments["curves"], "mnist", Line("slic", kind="noise"), 0.25),
        plan.cell(plan.experiments["sigma"], "mnist", Line("slic"), 0.25),
    ):
        assert plan.cell_key(other) != plan.cell_key(cell)
        assert other.name != cell.name
    assert plan.model_key("mnist") != plan.model_key("mnist-noise")
    named = dataclasses.replace(plan.data["mnist"], classes="names.txt")
    assert dataclasses.replace(plan, data={**plan.data, "mnist": named}).model_key("mnist") != plan.model_key("mnist")


def test_precedence_of_stop_rules() -> None:
    plan = read_plan()
    experiment = dataclasses.replace(plan.experiments["curves"], stop={"mnist": "radius:0.5"})
    rules = [plan.cell(experiment, data, Line("rs"), 0.25).stop for data in ("mnist", "imagenet", "cifar10")]
    assert rules == ["radius:0.5", plan.data["imagenet"].stop, plan.stop]
    for_all = dataclasses.replace(experiment, stop="radius:0.3")
    assert plan.cell(for_all, "imagenet", Line("rs"), 0.25).stop == "radius:0.3"


def test_a_cell_decided_at_more_radii_serves_several_experiments() -> None:
    plan, rs = read_plan(), Line("rs")
    base = plan.experiments["sigma"]
    rules = ["radius:0.1", "radius:0.25,0.1", "radius:0.1,0.25,0.5", "radius:0.5,0.25,0.1", "radius:0.25", "abstain"]
    experiments = {rule: dataclasses.replace(base, name=rule, stop=rule, sigmas={"mnist": (0.5,)}) for rule in rules}
    experiments["elsewhere"] = dataclasses.replace(base, stop="radius:0.1,0.2", sigmas={"mnist": (0.6,)})
    plan = dataclasses.replace(plan, experiments=experiments)
    stops = {rule: plan.cell(experiments[rule], "mnist", rs, 0.5).stop for rule in rules}
    most = "radius:0.1,0.25,0.5"
    # To decide 0.25 only, sampling ends earlier than to decide 0.1 and 0.25, so that rule needs rows of its own.
    assert stops == dict(zip(rules, [most, most, most, most, "radius:0.25", "abstain"], strict=True))


def test_models_of_another_plan_are_not_listed() -> None:
    plan, models = read_plan(), Results(RESULTS).models()
    longer = dataclasses.replace(plan.models["mnist"], epochs=plan.models["mnist"].epochs + 1)
    other = dataclasses.replace(plan, models={"mnist": longer, "cifar10": plan.models["cifar10"]})
    assert [line[0] for line in models_table(other, models).lines] == ["cifar10"]


@pytest.mark.parametrize("target", [0.001, 0.3, 0.62, 0.999])
def test_matching_sigma(target: float) -> None:
    sigmas: list[float] = []

    def accuracy(sigma: float) -> float:
        sigmas.append(sigma)
        return math.exp(-2 * sigma)

    match = matching_sigma(accuracy, target)
    assert match in sigmas
    assert LEAST <= match <= MOST
    best = min(max(-math.log(target) / 2, LEAST), MOST)
    assert abs(math.log(match / best)) < 0.03
    assert abs(accuracy(match) - target) == min(abs(math.exp(-2 * s) - target) for s in sigmas)


def frame_of(radius: list[float], correct: list[bool]) -> RunFrame:
    count = len(radius)
    nan, label = np.full(count, np.nan), np.zeros(count, np.int64)
    prediction = np.where(correct, 0, 1)
    return RunFrame(
        "m", np.arange(count), label, prediction, np.array(radius), nan, nan, nan, nan, np.zeros(count, bool)
    )


def test_a_gallery_names_the_certified_class() -> None:
    """A radius without the class would look like success even if the class is wrong."""
    plan = read_plan()
    experiment, line = plan.experiments["gallery"], Line("rs")
    unknown = dataclasses.replace(frame_of([0.5], [False]), label=np.array([-1]))
    assert gallery_table(plan, experiment, "cat", {(0.3, line): unknown}).lines[0][-3:] == ("–", "red fox", "0.500")
    assert charts._describe_outcome(plan, "cat", unknown, 0) == "red fox, radius 0.500"
    assert charts._describe_outcome(plan, "digits", unknown, 0) == "1, radius 0.500"
    wrong = frame_of([0.5], [False])
    assert gallery_table(plan, experiment, "digits", {(0.3, line): wrong}).lines[0][-3:] == ("0", "1", "0.500")
    assert charts._describe_outcome(plan, "digits", wrong, 0) == "radius 0.500 (wrong)"


def test_gain_is_a_paired_difference() -> None:
    one = frame_of([0.5, 0.5, 0.5, 0.1], [True, True, True, True])
    other = frame_of([0.5, 0.1, 0.5, 0.1], [True, True, False, True])
    points, error = accuracy_gain(one, other, 0.25)
    assert points == pytest.approx(50.0)
    # Agresti and Min's standard error: 2 and 0 discordant images, with 1/2 added to each.
    assert error == pytest.approx(100 * 1.96 * math.sqrt(2.5 + 0.5 - 2**2 / 6) / 6)
    assert math.isnan(accuracy_gain(one, frame_of([0.5], [True]), 0.25)[0])
    assert accuracy_gain(one, one, 0.25)[0] == 0
    assert accuracy_gain(one, one, 0.25)[1] > 0  # four images that agree do not prove that there is no difference


def test_coverage_of_the_error_of_a_gain() -> None:
    rng = np.random.default_rng(0)
    for first, second in ((0.97, 0.99), (0.6, 0.7), (0.1, 0.35), (1.0, 1.0)):
        covered = 0
        for _ in range(400):
            one, other = (frame_of([0.5] * 100, list(rng.random(100) < share)) for share in (first, second))
            points, error = accuracy_gain(one, other, 0.25)
            covered += abs(points - 100 * (first - second)) <= error + 1e-9
        assert covered >= 0.92 * 400  # 95% minus three standard deviations


def test_most_common_share() -> None:
    rows = dataclasses.replace(frame_of([0.5] * 6, [True] * 6), prediction=np.array([3, 3, -1, 0, 12, 11]))
    assert most_common_share(rows) == 2 / 5
    assert most_common_share(rows, labels_at_a_time=10) == 3 / 5
    joined = dataclasses.replace(rows, label=np.array([0, 1, 2, 3, 4, 4]), prediction=np.array([2, 3, 4, 4, 3, 2]))
    assert most_common_share(joined, labels_at_a_time=2) == 2 / 6  # the fifth label belongs to the second group
    assert math.isnan(most_common_share(dataclasses.replace(rows, prediction=np.full(6, -1))))


def test_the_papers_numbers_hold_for_gaussian_noise_and_clean_training() -> None:
    plan = read_plan()
    table1 = plan.experiments["table1"]
    assert (
        plan.paper_numbers(table1, "mnist", Line("slic-tuned"))
        == plan.paper_numbers(table1, "mnist", Line("slic"))
        != ()
    )
    assert (
        plan.paper_numbers(table1, "mnist", Line("rs", "exponential"))
        == plan.paper_numbers(table1, "mnist", Line("rs", kind="x"))
        == ()
    )


@pytest.mark.parametrize(
    ("name", "stop", "sigmas", "across", "panels"),
    [
        ("noises", "abstain", (0.12, 0.5), "L2 radius r", 2),
        ("methods", "abstain", (0.12,), "L2 radius r", 1),
        ("noises", "radius:0.1,0.25", (0.12, 0.5), "L2 radius r", 2),
        ("noises", "radius:0.1", (0.12, 0.5), "sigma", 1),
        ("methods", "radius:0.1", (0.12,), "certified accuracy at radius 0.1 (%), 95% interval", 1),
    ],
)
def test_curves_show_the_radii_that_were_decided(
    name: str, stop: str, sigmas: tuple[float, ...], across: str, panels: int
) -> None:
    """Also if the rows come from a rule that decides more radii. Legends are not cut off."""
    plan = read_plan()
    experiment = dataclasses.replace(plan.experiments[name], stop=stop, radius=0.25)
    settings = RunSettings(stop="radius:0.1,0.25")
    rows = dataclasses.replace(frame_of([0.1, 0.3, 0.2], [True, True, True]), settings=settings)
    if stop == "abstain":
        rows = dataclasses.replace(rows, settings=RunSettings())
    frames = {(sigma, line): rows for sigma in sigmas for line in experiment.lines}
    figure = charts.curves(plan, experiment, "mnist", frames)
    assert len(figure.axes) == panels
    assert figure.axes[-1].get_xlabel() == across
    legends = [legend for legend in (*figure.legends, figure.axes[0].get_legend()) if legend]
    labels = {plan.label(line) for line in experiment.lines}
    assert {text.get_text() for legend in legends for text in legend.texts} == (labels if legends else set())
    assert legends or {text.get_text() for text in figure.axes[0].get_yticklabels()} == labels
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for legend in figure.legends:
        box = legend.get_window_extent(canvas.get_renderer())
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1


def test_a_table_as_markdown_and_csv() -> None:
    table = Table(("name", "x"), (("a", "1.5"), ("b", "–")))
    assert table.to_markdown() == "| name | x |\n| --- | ---: |\n| a | 1.5 |\n| b | – |\n"
    assert table.to_csv() == "name,x\na,1.5\nb,\n"


def test_radii_in_tables_are_rounded_down() -> None:
    assert format_radius(0.2169999) == "0.216"
    assert format_radius(math.nan) == "–"


def test_results_of_the_complete_plan_are_committed() -> None:
    plan, manifest = read_plan(), Results(RESULTS).manifest()
    names = {f"{name}-{data}" for name, experiment in plan.experiments.items() for data in experiment.data}
    assert {path.stem for path in (RESULTS / "tables").glob("*.md")} == names
    models = {name: plan.model_key(name) for name, model in plan.models.items() if model.source is None}
    assert {name: values["key"] for name, values in manifest.models.items()} == models
    for experiment in plan.experiments.values():
        for data, sigmas in experiment.sigmas.items():
            for cell in experiment_cells(plan, experiment, data, sigmas).values():
                assert manifest.entries[plan.cell_key(cell)].cell == cell


def test_committed_rows_are_complete() -> None:
    plan, results = read_plan(), Results(RESULTS)
    for entry in results.manifest().entries.values():
        frame = results.frame(entry)
        assert entry.rows == len(frame) == len(set(frame.idx.tolist())) == plan.data[entry.cell.data].images
        assert frame.settings.alpha == plan.alpha
        assert plan.cell_key(entry.cell) == entry.key


def test_tables_of_the_claims() -> None:
    claims = (RESULTS.parent / "reproduction.md").read_text() + (RESULTS / "signals.md").read_text()
    tables = runpy.run_path(str(RESULTS / "claims.py"))["tables"](RESULTS)
    assert len(tables) == 12
    for name, table in tables.items():
        assert table in claims, name


def test_the_lines_that_load_rows_with_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (RESULTS / "README.md").read_text(), flags=re.DOTALL)
    monkeypatch.chdir(RESULTS)
    printed: list[Any] = []
    exec(code, {"print": printed.append})
    (row,) = [row for row in committed_table("curves-mnist") if row["sigma"] == "0.5" and row["method"] == "SLIC"]
    share = printed[0]["mnist", "gaussian", 0.5, "slic", "abstain"]
    assert f"{100 * share:.1f}" == row["at 0.25"]


def test_numbers_in_the_claims_are_in_a_table_of_their_section() -> None:
    """Numbers with decimals must be in a table of the section or in a file that the section links to."""
    page, plan = RESULTS.parent / "reproduction.md", read_plan()
    sections = re.split(r"^##", page.read_text().partition("## Claim by claim")[2], flags=re.MULTILINE)
    assert len(sections) > 5
    count = 0
    for section in sections:
        lines = section.splitlines()
        tables = [line for line in lines if line.startswith("|")]
        tables += [(page.parent / name).read_text() for name in re.findall(r"\]\((results/tables/[^)]*)\)", section)]
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", " ".join(line for line in lines if not line.startswith("|")))
        numbers = set(re.findall(r"\d+\.\d+", prose)) - {str(plan.alpha)}
        radii = {f"{e.radius:g}" for e in plan.experiments.values()}
        assert not numbers - radii - set(re.findall(r"\d+\.\d+", " ".join(tables))), lines[0]
        count += len(numbers)
    assert count > 10


def committed_table(name: str) -> list[dict[str, str]]:
    with (RESULTS / "tables" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_readmes_numbers_are_in_the_tables() -> None:
    shares = {row["method"]: row["at 0.25"] for row in committed_table("curves-mnist") if row["sigma"] == "0.5"}
    readme = (RESULTS.parent.parent / "README.md").read_text()
    soft, blur, plain = shares["soft, 4 shifts"], shares["blur"], shares["RS"]
    sentence = f"certify {soft}%, a blur chosen on training images {blur}%, plain smoothing {plain}%"
    assert f"At sigma 0.5 and radius 0.25, soft superpixels {sentence}" in " ".join(readme.split())
    sample = "ImageNet sample, ten labels"
    titles = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "imagenet": sample}
    for data, title in titles.items():
        rows = {row["method"]: row["certified accuracy at 0.01, %"] for row in committed_table(f"table1-{data}")}
        cells = " | ".join(rows[method] for method in ("RS", "blur", "SLIC", "soft, 4 shifts"))
        assert f"| {title} | {cells} |" in readme


def test_tables_on_partitions() -> None:
    script = runpy.run_path(str(RESULTS / "partitions.py"))
    rows, page = script["read_rows"](script["ROWS"]), (RESULTS / "partitions.md").read_text()
    accuracies, differences = script["tables"](rows)
    assert accuracies.count("superpixels") == 6
    assert accuracies in page
    assert differences in page
    assert script["imagenet_table"](rows) in page


def test_adapted_models_of_a_plan(tmp_path: Path) -> None:
    def plan_of(text: str) -> ReproductionPlan:
        path = tmp_path / "plan.toml"
        path.write_text(text)
        return read_plan(path)

    text = QUICK.read_text() + ADAPTED_PLAN
    plan = plan_of(text)
    line = Line("shifted", kind="bias")
    assert plan.label(line) == "soft, 4 shifts (bias)"
    assert plan.unadapted("digits", line) == Line("shifted")
    assert plan.data_of("digits-bias") == "digits"
    key = plan.model_key("digits-bias")
    assert plan_of(text.replace("epochs = 3", "epochs = 4", 1)).model_key("digits-bias") != key  # another base
    assert plan_of(text.replace('label = "bias"', 'label = "with a bias"')).model_key("digits-bias") == key
    assert plan_of(QUICK.read_text()).model_key("digits") == plan.model_key("digits")


def test_no_image_is_both_adapted_with_and_certified(quick: Path) -> None:
    reproduction = Reproduction(read_plan(quick=True), quick)
    digits = {split: open_dataset("builtin:mnist5k", split=split).stack()[0] for split in ("train", "test")}

    def choose(certified: int) -> list[int]:
        photos = torch.cat([digits["test"][:certified], digits["train"][certified:150]])
        return reproduction._choose_photos("digits-adapted", Arrays(photos.numpy(), None))

    assert sorted(choose(0)) == list(range(150))
    assert sorted(choose(1)) == list(range(1, 150))
    with pytest.raises(PprsError, match="2 of the 150 images to adapt digits-adapted with are among those of digits"):
        choose(2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('of = "digits"', 'of = "digit"', 'model digits-bias: "of" is unknown model "digit". Did you mean "digits"'),
        ('adapt = "bias"', 'adapt = "bais"', 'model digits-bias: unknown method "bais" to adapt. Did you mean "bias"'),
        ('noise = 0.5\npartition = "slic/soft/shifts:k=4"', "", 'model digits-bias needs the "noise"'),
        ("images = 100", 'budget = "soon"', "model digits-bias: "),
    ],
)
def test_mistakes_in_an_adapted_model(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ADAPTED_PLAN
    path = tmp_path / "plan.toml"
    path.write_text(QUICK.read_text() + ADAPTED_PLAN.replace(old, new))
    with pytest.raises(PprsError, match=re.escape(message)):
        read_plan(path)


SIGNALS = """
n0 = 8
n = 16
alpha = 0.01
seed = 0
choose = { images = 1, samples = 1 }
[data.motions]
source = "builtin:BasicMotions"
domain = "signal"
images = 6
[model.motions]
data = "motions"
arch = "resnet1d"
width = 4
engine = "torch"
epochs = 8
batch_size = 8
[model.motions-noise]
data = "motions"
arch = "resnet1d"
width = 4
engine = "torch"
epochs = 1
noises = [0.25, 1.0]
[method.rs]
label = "RS"
partition = "none"
[method.slic1d]
label = "SLIC"
partition = "slic1d"
[experiment.signals]
title = "Signals"
draw = "gains"
lines = ["rs", "slic1d", "noise@rs"]
radius = 0.5
sigmas = { motions = [0.25, 1.0] }
"""


def test_an_experiment_on_signals_with_a_network_for_each_sigma(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(SIGNALS)
    (result,) = reproduce("signals", plan=path, out=tmp_path / "out", progress=False)
    entries = Results(tmp_path / "out").manifest().entries.values()
    networks = {(entry.cell.model, entry.cell.sigma): entry.network for entry in entries}
    assert set(networks) == {
        ("motions", 0.25), ("motions", 1.0), ("motions-noise-0.25", 0.25), ("motions-noise-1", 1.0)
    }  # fmt: skip
    assert len(set(networks.values())) == 3
    columns = dict(zip(result.table.heads, zip(*result.table.lines, strict=True), strict=True))
    assert columns["method"] == ("RS", "SLIC", "RS (noise-trained)") * 2
    plan = read_plan(path)
    work = Reproduction(plan, tmp_path / "out", draw_only=True)
    for i, (sigma, line) in enumerate(itertools.product((0.25, 1.0), plan.experiments["signals"].lines)):
        frame = work.rows(plan.cell(plan.experiments["signals"], "motions", line, sigma))
        radii = np.where(frame.correct, frame.radius, 0.0)
        certified = 100 * np.mean(frame.correct & (frame.radius >= sigma / 2))
        assert columns["at 0.5 sigma"][i] == f"{certified:.1f}"
        if line == Line("rs"):
            plain, share = radii, certified
            assert columns["ACR gain"][i] == columns["gain at 0.5 sigma"][i] == NONE
        else:  # compared with plain smoothing of the clean-trained network, whatever the line's own network
            assert float(columns["ACR gain"][i]) == pytest.approx((radii - plain).mean(), abs=6e-4)
            assert float(columns["gain at 0.5 sigma"][i]) == pytest.approx(certified - share, abs=0.06)
    figure = (tmp_path / "out" / "figures" / "signals-motions.svg").read_text()
    assert "6 signals" in figure
