"""One plan, every figure and table of the paper; what is committed is what its rows say."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow.parquet
import pytest
from helpers import pprs
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from pprs import PprsError
from pprs.data import ImageSet
from pprs.noise import noise_of
from pprs.report.figures import to_bytes
from pprs.report.table import Table, radius
from pprs.reproduction import Drawn, cells_of, charts, draw, models_table, page, read_models, read_plan, sigmas_of, tell
from pprs.reproduction.match import LEAST, MOST, matching_sigma
from pprs.reproduction.plan import Data, Line, Model
from pprs.reproduction.run import NETWORK, PICTURES, Reproduction
from pprs.reproduction.tables import commonest, gain, pictured
from pprs.runs import RunFrame, RunSettings, read_frame
from pprs.sampling import Sampling, check_reach

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
NAMES = ("table1", "curves", "methods", "segments", "sigma", "noises", "training", "gallery")
QUICK = ROOT / "src" / "pprs" / "reproduction" / "quick.toml"


pytestmark = pytest.mark.timeout(900)  # whoever is first makes all of the quick plan


@pytest.fixture(scope="module")
def made(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    return once("quick", lambda out: pprs("reproduce", "all", "--quick", "--out", out, "--threads", 1))


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_every_kind_of_figure_and_table(made: Path) -> None:
    for name in NAMES:
        for path in (f"figures/{name}-digits.png", f"figures/{name}-digits.svg", f"tables/{name}-digits.csv"):
            assert (made / path).stat().st_size > 100, path
        assert f"figures/{name}-digits.png" in (made / "README.md").read_text()
    table = (made / "tables" / "table1-digits.md").read_text()
    for method in ("RS", "SLIC", "Quickshift", "Felzenszwalb", "soft, 4 shifts", "static grid", "best blur"):
        assert f"| {method} |" in table
    assert "| 94.9 |" in table  # the paper's, beside ours
    assert "| digits-partition |" in (made / "README.md").read_text()


def test_again_nothing_is_certified_anew(made: Path) -> None:
    rows, runs, page = stamps(made / "rows"), stamps(made / "runs"), (made / "README.md").read_text()
    pprs("reproduce", "table1,noises", "--quick", "--out", made)
    assert (made / "README.md").read_text() == page  # with what was drawn before
    assert stamps(made / "rows") == rows
    assert stamps(made / "runs") == runs


def test_figures_are_drawn_anew_from_rows_alone(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "rows", tmp_path / "rows")
    pprs("reproduce", "all", "--quick", "--out", tmp_path, "--draw-only")
    for kind in ("tables", "figures"):
        for path in sorted((made / kind).glob("[!.]*")):  # another test may be drawing them anew
            assert (tmp_path / kind / path.name).read_bytes() == path.read_bytes(), path.name
    rows = sorted((made / "rows").glob("*_gaussian-0.25_rs_*.parquet"))
    pprs("report", *rows, "--out", tmp_path / "r.md")


def test_rows_of_another_plan_are_not_taken(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "rows", tmp_path / "rows")
    other = tmp_path / "other.toml"
    other.write_text(QUICK.read_text().replace("n = 100\n", "n = 200\n"))
    told = pprs("reproduce", "curves", "--plan", other, "--out", tmp_path, "--draw-only", code=2)
    assert "made by another plan" in told.stderr


def test_rows_of_another_network_are_not_taken(made: Path, tmp_path: Path) -> None:
    """A network that is trained anew is another one, though the plan is the same."""
    shutil.copytree(made / "rows", tmp_path / "rows")
    path = tmp_path / "rows" / "models.json"
    models = json.loads(path.read_text())
    path.write_text(json.dumps({name: {**told, "digest": "0" * 16} for name, told in models.items()}))
    told = pprs("reproduce", "curves", "--quick", "--out", tmp_path, "--draw-only", code=2)
    assert "another plan or network" in told.stderr
    assert models["digits"]["digest"] != models["digits-noise"]["digest"]


@pytest.mark.parametrize(("what", "word"), [(NETWORK, "network"), (PICTURES, "pictures")])
def test_rows_of_two_networks_or_data_sets_are_not_compared(made: Path, tmp_path: Path, what: bytes, word: str) -> None:
    shutil.copytree(made / "rows", tmp_path / "rows")
    plan = read_plan(quick=True)
    if what == NETWORK:  # one that this plan did not train, so that nothing says which is the right one
        (tmp_path / "rows" / "models.json").unlink()
    work = Reproduction(plan, tmp_path, draw_only=True)
    cells = list(cells_of(plan, plan.experiments["curves"], "digits", (0.25,)).values())
    paths = [work.rows(cell) for cell in cells]
    table = pyarrow.parquet.read_table(paths[1])
    table = table.replace_schema_metadata({**table.schema.metadata, what: b"another"})
    pyarrow.parquet.write_table(table, paths[1])
    with pytest.raises(PprsError, match=f"made with different {word} by the name of digits"):
        work.rows(cells[1])


def classes_folder(path: Path, classes: int, images: int) -> Path:
    """Pictures in a subfolder a class, as ImageNet's are, with no training split."""
    for label in range(classes):
        (path / f"c{label}").mkdir(parents=True)
        for i in range(images):
            Image.new("L", (8, 8), 20 * label + i).save(path / f"c{label}" / f"{i}.png")
    return path


def test_images_of_a_folder_are_those_that_the_plan_says(tmp_path: Path) -> None:
    plan = read_plan(quick=True)
    folder = classes_folder(tmp_path / "f", 5, 4)
    data = Data(str(folder), 8, stride=2, labels_at_a_time=2)  # of 20, two of each of the first four classes
    for spec, groups in (
        (data, [("0,1", 4), ("2,3", 4)]),
        (dataclasses.replace(data, images=5), [("0,1,2", 5)]),  # the one that is left over joins the others
        (dataclasses.replace(data, images=10), [("0,1", 4), ("2,3,4", 6)]),
        (dataclasses.replace(data, labels_at_a_time=None, images=3), [(None, 3)]),
    ):
        made = dataclasses.replace(plan, data={"digits": spec})
        assert Reproduction(made, tmp_path, draw_only=False)._groups("digits", "digits") == groups
    one = dataclasses.replace(plan, data={"digits": dataclasses.replace(data, images=2)})
    with pytest.raises(PprsError, match="give a larger stride"):
        Reproduction(one, tmp_path, draw_only=False)._groups("digits", "digits")
    # To a network from elsewhere the data's numbers mean nothing; its names do.
    known = dataclasses.replace(plan, data={"digits": data}, models={"digits": Model("net.onnx")})
    words = Reproduction(known, tmp_path, draw_only=False)._groups("digits", "digits")
    assert words == [("c0,c1", 4), ("c2,c3", 4)]


def test_a_network_that_is_trained_anew_takes_the_rows_of_the_former_with_it(tmp_path: Path) -> None:
    """Also where it chooses among some labels only; and a plan of one cell more does not mix the two."""
    text = QUICK.read_text()
    text = text.replace("images = 20", 'images = 4\nlabels = "3,7"').replace("epochs = 3", "epochs = 1")
    start, end = text.index("[experiment.table1]"), text.index("[experiment.curves]")
    curves = """[experiment.curves]
title = "Curves"
draw = "curves"
lines = [{}]
sigmas = {{ digits = [0.25] }}
"""
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    assert start < end
    plan.write_text(text[:start] + curves.format('"rs"'))
    pprs("reproduce", "curves", "--plan", plan, "--out", out, "--threads", 1)
    pprs("reproduce", "curves", "--plan", plan, "--out", out, "--threads", 1, "--draw-only")  # its rows are taken
    models, (rows,) = out / "rows" / "models.json", (out / "rows").glob("*.parquet")
    # As after `rm -r models` on a machine that trains otherwise: the file says another network.
    former = models.read_text().replace(json.loads(models.read_text())["digits"]["digest"], "0" * 16)
    models.write_text(former)
    table = pyarrow.parquet.read_table(rows)
    stale = table.replace_schema_metadata({**table.schema.metadata, NETWORK: b"0" * 16})
    pyarrow.parquet.write_table(stale, rows)
    (out / "models" / "digits.safetensors").unlink()
    plan.write_text(text[:start] + curves.format('"rs", "slic"'))
    told = pprs("reproduce", "curves", "--plan", plan, "--out", out, "--threads", 1)
    assert "certified again" in told.stderr + told.stdout
    stamps_of = {pyarrow.parquet.read_schema(p).metadata[NETWORK] for p in (out / "rows").glob("*.parquet")}
    assert stamps_of == {json.loads(models.read_text())["digits"]["digest"].encode()} != {b"0" * 16}
    models.write_text(models.read_text().replace(stamps_of.pop().decode(), "0" * 16))
    plan.write_text(text[:start] + curves.format('"rs", "slic", "soft"'))
    told = pprs("reproduce", "curves", "--plan", plan, "--out", out, "--threads", 1, code=2)
    assert "is not the network that was trained here" in told.stderr.replace("\n", " ")


def test_nothing_is_trained_or_chosen_on_images_that_are_certified(tmp_path: Path) -> None:
    plan = read_plan(quick=True)
    spec = Data(str(classes_folder(tmp_path / "f", 2, 3)), 6)
    plan = dataclasses.replace(plan, data={"digits": spec})
    work = Reproduction(plan, tmp_path, draw_only=False)
    with pytest.raises(PprsError, match="no training split"):
        work.model("digits")
    cell = plan.cell(plan.experiments["curves"], "digits", Line("blur"), 0.25)
    with pytest.raises(PprsError, match="no training split"):
        work._partition(cell)
    without = dataclasses.replace(plan, data={"digits": dataclasses.replace(spec, training=False)})
    assert Reproduction(without, tmp_path, draw_only=False)._partition(cell) == cell.partition


def test_a_gallery_whose_pictures_are_not_there_is_told_and_its_table_drawn(made: Path, tmp_path: Path) -> None:
    class Without(Reproduction):
        def network_inputs(self, data: str) -> ImageSet:
            raise PprsError("no pictures")

    plan = read_plan(quick=True)
    assert Without(plan, made, draw_only=True)._gallery_pictures("digits") is None
    with pytest.raises(PprsError, match="no pictures"):
        Without(plan, made, draw_only=False)._gallery_pictures("digits")
    rows = Reproduction(plan, made, draw_only=True).rows
    draw(plan, plan.experiments["gallery"], "digits", rows, tmp_path, None)
    assert (tmp_path / "tables" / "gallery-digits.md").is_file()
    assert not (tmp_path / "figures").exists()


def test_what_cannot_be_made_does_not_stop_the_rest(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "rows", tmp_path / "rows")
    (tmp_path / "rows" / "digits_digits_gaussian-0.5_rs_all.parquet").unlink()
    told = pprs("reproduce", "curves,noises", "--quick", "--out", tmp_path, "--draw-only", code=2)
    assert "1 could not be made:" in told.stderr
    assert (tmp_path / "tables" / "noises-digits.md").is_file()
    assert not (tmp_path / "tables" / "curves-digits.md").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"grid", "blur"]', '"grit", "blur"]', 'no method is called "grit". Did you mean "grid"'),
        ('draw = "sweep"', 'draw = "sweeps"', 'cannot draw "sweeps"'),
        (
            "alpha = 0.001",
            "alpa = 0.001",
            'top level: unknown key "alpa"; did you mean "alpha"? There are: alpha, choose',
        ),
        ("images = 20", "", 'data digits: missing key "images"'),
        ('"slic:n_segments={}"', '"slic:segments={}"', 'no option "segments"'),
        ('partition = "quickshift"', 'partition = "quikshift"', 'unknown partition "quikshift"'),
        ('"noise@rs"', '"noisy@rs"', 'no model is called "digits-noisy"'),
        ('"exponential/rs"', '"laplace/rs"', 'no noise is called "laplace"'),
        ("n0 = 20", "n0 == 20", "is not TOML"),
        ("sigmas = { digits = [0.3] }", "sigmas = { cats = [0.3] }", 'no data is called "cats"'),
        ('"radius:0.01,0.1"', '"radios:0.1"', "no rule to stop"),
        ('"radius:0.01,0.1"', '{ digits = "radios:0.1" }', "no rule to stop"),
        ('"radius:0.01,0.1"', "{ digits = 0.1 }", ": stop.digits: 0.1 is not a text in quotes"),
        ('"radius:0.01,0.1"', "0.1", ": stop: 0.1 is not a text in quotes or a table"),
        ('"radius:0.01,0.1"', '{ digit = "radius:0.1" }', 'a stop rule for "digit", which it is not about'),
        ("radius = 0.1", "radius = 0.2", "about radius 0.2, and on digits images are decided at"),
        ("n = 100", 'n = "many"', 'top level: n: "many" is not a whole number'),
        ("n = 100", "n = 3", "can never certify"),
        ("choose = { images = 10, samples = 32 }", "choose = 3", "3 is not a table"),
        ("choose = { images = 10, samples = 32 }", "choose = { images = 10 }", 'choose: missing key "samples"'),
        ("choose = { images = 10, samples = 32 }", "choose = { images = 10, samples = 0 }", "is 1 or more"),
        ("sigmas = { digits = [0.3] }", "sigmas = [0.3]", "is not a table"),
        ("sigmas = { digits = [0.3] }", "sigmas = { digits = 0.3 }", ": sigmas.digits: 0.3 is not a list"),
        ("sigmas = { digits = [0.3] }", 'sigmas = { digits = ["0.3"] }', ': sigmas.digits[0]: "0.3" is not a number'),
        ("sigmas = { digits = [0.3] }", "sigmas = { digits = [-0.3] }", "each above 0"),
        ("sigmas = { digits = [0.3] }", "", 'has no "sigmas"'),
        ("values = { digits = [9, 36, 150] }", "values = 9", "9 is not a table"),
        ("images = 20", 'images = "20"', 'data digits: images: "20" is not a whole number'),
        ("images = 20", "images = 0", "data digits: images is 1 or more, not 0"),
        ("images = 20", "images = 20\nlabels_at_a_time = 1", "labels_at_a_time is 2 or more"),
        ("epochs = 3", "epochs = 0", "model digits: epochs is 1 or more"),
        ("epochs = 3", "epochs = true", "model digits: epochs: true is not a whole number"),
        ("epochs = 3", "epochs = 3.0", "model digits: epochs: 3.0 is not a whole number"),
        ("epochs = 3", "epochs = 3\nnoise = nan", "model digits: noise: NaN is not a finite number"),
        ("epochs = 3", "epochs = 3\nnoise = true", "model digits: noise: true is not a number"),
        ("epochs = 3", "epochs = 3\nnoise = 2020-01-01", "2020-01-01 is a date"),
        ("images = 20", "images = 20\ntraining = 1", "data digits: training: 1 is not true or false"),
        ("images = 20", 'images = 20\nlables = "a"', 'data digits: unknown key "lables"; did you mean "labels"?'),
        ('"noise@rs"', "3", "3 is not a text in quotes"),
        ('arch = "resnet-small"', 'arch = "resnet-smal"', 'no architecture is called "resnet-smal"'),
        ('data = "digits"', 'data = "digit"', 'model digits: no data is called "digit". Did you mean "digits"'),
        ('data = "digits"', "", 'neither a "source" nor "data"'),
        ('"slic/soft/shifts:k=2"', '"slik"', 'model digits-partition: unknown partition "slik"'),
        ("[method.rs]", "[method.plain]", 'takes a method called "rs"'),
        ("epochs = 3", "epochs = 3\nshift = -1", "shift is 0 or more"),
        ('engine = "torch"', 'engine = "torhc"', 'no engine is called "torhc"'),
        ("seed = 0", "seed = -1", "seed is 0 or more"),
        ("images = 20", "images = 20\nn = 3", "on digits: `n` 3 can never certify"),
        ("images = 20", "images = 20\nn = 11", "on digits: n=11 samples can never certify"),
        ("sigmas = { digits = [0.3] }", "sigmas = { digits = [] }", "one sigma or more"),
        ("sigmas = { digits = [0.3] }", "sigmas = { digits = [0.3] }\nimages = 0", "images is 1 or more"),
        ("values = { digits = [9, 36, 150] }", "values = { digit = [9] }", 'values for "digit", which it is not about'),
        ('"radius:0.01,0.1"', '"radius:0.1,0.9"', "on digits: n=100 samples can never certify a radius of 0.9"),
        ("[experiment.table1]", "[experiment]\nmore = 3\n[experiment.table1]", "3 is not a table"),
    ],
)
def test_a_wrong_plan_is_told_before_anything_is_made(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = QUICK.read_text()
    assert old in text
    path = tmp_path / "plan.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PprsError) as error:
        read_plan(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_wrong_words(tmp_path: Path) -> None:
    for words, message in (
        (("tabel1",), 'no experiment is called "tabel1". Did you mean "table1"'),
        (("table1", "--data", "mist"), "no data set of the plan"),
        (("table1", "--data", "cat"), "--data cat: table1 is about imagenet, cifar10, mnist, fashion-mnist"),
        (("all", "--data-root", tmp_path / "none"), "is not a folder"),
        (("all", "--plan", tmp_path / "none.toml"), "cannot read the plan"),
    ):
        told = pprs("reproduce", *words, "--out", tmp_path / "out", code=2)
        assert message in told.stderr.replace("\n", " ")
        assert not (tmp_path / "out").exists()
    pprs("reproduce", "all", "--write-plan", tmp_path / "p.toml")
    assert read_plan(tmp_path / "p.toml") == read_plan()


def test_the_papers_plan_has_all_that_the_paper_reports() -> None:
    plan = read_plan()
    assert set(NAMES) <= set(plan.experiments)
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
        for cell in cells_of(plan, e, d, e.sigmas[d]).values()
    ]
    assert all(name == name.replace("/", "") for name in names)


def test_the_papers_plan_asks_for_no_radius_that_its_samples_cannot_certify() -> None:
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
            for cell in cells_of(plan, experiment, data, sigmas).values():
                sampling = Sampling(spec.n0 or plan.n0, spec.n or plan.n, plan.alpha, stop=cell.stop)
                check_reach(sampling, noise_of(cell.noise, cell.sigma), pixels[data], 10)


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


def test_an_experiments_rule_goes_before_the_data_sets_and_that_before_the_plans() -> None:
    plan = read_plan()
    experiment = dataclasses.replace(plan.experiments["curves"], stop={"mnist": "radius:0.5"})
    rules = [plan.cell(experiment, data, Line("rs"), 0.25).stop for data in ("mnist", "imagenet", "cifar10")]
    assert rules == ["radius:0.5", plan.data["imagenet"].stop, plan.stop]
    for_all = dataclasses.replace(experiment, stop="radius:0.3")
    assert plan.cell(for_all, "imagenet", Line("rs"), 0.25).stop == "radius:0.3"


def test_what_decides_more_radii_is_certified_for_both() -> None:
    plan, rs = read_plan(), Line("rs")
    base = plan.experiments["sigma"]
    rules = ["radius:0.1", "radius:0.25,0.1", "radius:0.1,0.25,0.5", "radius:0.5,0.25,0.1", "radius:0.25", "abstain"]
    experiments = {rule: dataclasses.replace(base, name=rule, stop=rule, sigmas={"mnist": (0.5,)}) for rule in rules}
    experiments["elsewhere"] = dataclasses.replace(base, stop="radius:0.1,0.2", sigmas={"mnist": (0.6,)})
    plan = dataclasses.replace(plan, experiments=experiments)
    taken = {rule: plan.cell(experiments[rule], "mnist", rs, 0.5).stop for rule in rules}
    most = "radius:0.1,0.25,0.5"
    # For 0.25 alone sampling is given up earlier than for 0.1 and 0.25: that is another rule.
    assert taken == dict(zip(rules, [most, most, most, most, "radius:0.25", "abstain"], strict=True))


def test_models_that_another_plan_trained_are_not_told() -> None:
    plan, models = read_plan(), read_models(RESULTS)
    longer = dataclasses.replace(plan.models["mnist"], epochs=plan.models["mnist"].epochs + 1)
    other = dataclasses.replace(plan, models={"mnist": longer, "cifar10": plan.models["cifar10"]})
    assert [line[0] for line in models_table(other, models).lines] == ["cifar10"]


@pytest.mark.parametrize("target", [0.001, 0.3, 0.62, 0.999])
def test_matching_sigma(target: float) -> None:
    tried: list[float] = []

    def accuracy(sigma: float) -> float:
        tried.append(sigma)
        return math.exp(-2 * sigma)

    found = matching_sigma(accuracy, target)
    assert found in tried
    assert LEAST <= found <= MOST
    best = min(max(-math.log(target) / 2, LEAST), MOST)
    assert abs(math.log(found / best)) < 0.03
    assert abs(accuracy(found) - target) == min(abs(math.exp(-2 * s) - target) for s in tried)


def rows_of(radius: list[float], right: list[bool]) -> RunFrame:
    count = len(radius)
    nan, label = np.full(count, np.nan), np.zeros(count, np.int64)
    said = np.where(right, 0, 1)
    return RunFrame("m", np.arange(count), label, said, np.array(radius), nan, nan, nan, nan, np.zeros(count, bool))


def test_a_gallery_says_as_what_a_picture_is_certified() -> None:
    """A radius alone would look like praise, whatever the label."""
    plan = read_plan()
    experiment, line = plan.experiments["gallery"], Line("rs")
    unknown = dataclasses.replace(rows_of([0.5], [False]), label=np.array([-1]))
    assert pictured(plan, experiment, "cat", {(0.3, line): unknown}).lines[0][-3:] == ("–", "red fox", "0.500")
    assert charts._said(plan, "cat", unknown, 0) == "red fox, radius 0.500"
    assert charts._said(plan, "digits", unknown, 0) == "1, radius 0.500"
    wrong = rows_of([0.5], [False])
    assert pictured(plan, experiment, "digits", {(0.3, line): wrong}).lines[0][-3:] == ("0", "1", "0.500")
    assert charts._said(plan, "digits", wrong, 0) == "radius 0.500 (wrong)"


def test_gain_is_image_by_image() -> None:
    one = rows_of([0.5, 0.5, 0.5, 0.1], [True, True, True, True])
    other = rows_of([0.5, 0.1, 0.5, 0.1], [True, True, False, True])
    ahead, error = gain(one, other, 0.25)
    assert ahead == pytest.approx(50.0)
    # Two images for one and none for the other, half of one added to each: Agresti and Min's standard error.
    assert error == pytest.approx(100 * 1.96 * math.sqrt(2.5 + 0.5 - 2**2 / 6) / 6)
    assert math.isnan(gain(one, rows_of([0.5], [True]), 0.25)[0])
    assert gain(one, one, 0.25)[0] == 0
    assert gain(one, one, 0.25)[1] > 0  # four images that agree do not prove that all do


def test_the_error_of_a_gain_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for first, second in ((0.97, 0.99), (0.6, 0.7), (0.1, 0.35), (1.0, 1.0)):
        held = 0
        for _ in range(400):
            one, other = (rows_of([0.5] * 100, list(rng.random(100) < share)) for share in (first, second))
            ahead, error = gain(one, other, 0.25)
            held += abs(ahead - 100 * (first - second)) <= error + 1e-9
        assert held >= 0.92 * 400  # 95%, less three standard deviations


def test_the_commonest_label() -> None:
    rows = dataclasses.replace(rows_of([0.5] * 6, [True] * 6), prediction=np.array([3, 3, -1, 0, 12, 11]))
    assert commonest(rows) == 2 / 5
    assert commonest(rows, at_a_time=10) == 3 / 5
    joined = dataclasses.replace(rows, label=np.array([0, 1, 2, 3, 4, 4]), prediction=np.array([2, 3, 4, 4, 3, 2]))
    assert commonest(joined, at_a_time=2) == 2 / 6  # the fifth label is in the second group
    assert math.isnan(commonest(dataclasses.replace(rows, prediction=np.full(6, -1))))


def test_the_papers_numbers_are_of_a_gaussian_and_a_clean_classifier() -> None:
    plan = read_plan()
    table1 = plan.experiments["table1"]
    assert plan.paper(table1, "mnist", Line("slic-tuned")) == plan.paper(table1, "mnist", Line("slic")) != ()
    assert (
        plan.paper(table1, "mnist", Line("rs", "exponential"))
        == plan.paper(table1, "mnist", Line("rs", kind="x"))
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
def test_curves_show_what_was_decided(
    name: str, stop: str, sigmas: tuple[float, ...], across: str, panels: int
) -> None:
    """Also where the rows were made by a rule that decides more; and no legend is cut off."""
    plan = read_plan()
    experiment = dataclasses.replace(plan.experiments[name], stop=stop, radius=0.25)
    settings = RunSettings(stop="radius:0.1,0.25")
    rows = dataclasses.replace(rows_of([0.1, 0.3, 0.2], [True, True, True]), settings=settings)
    if stop == "abstain":
        rows = dataclasses.replace(rows, settings=RunSettings())
    found = {(sigma, line): rows for sigma in sigmas for line in experiment.lines}
    figure = charts.curves(plan, experiment, "mnist", found)
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


def test_tables_are_the_same_in_both_forms() -> None:
    table = Table(("name", "x"), (("a", "1.5"), ("b", "–")))
    assert table.to_markdown() == "| name | x |\n| --- | ---: |\n| a | 1.5 |\n| b | – |\n"
    assert table.to_csv() == "name,x\na,1.5\nb,\n"


def test_radii_in_tables_are_never_rounded_up() -> None:
    assert radius(0.2169999) == "0.216"
    assert radius(math.nan) == "–"


COMMITTED = sorted((RESULTS / "tables").glob("*.md"))


def test_all_of_the_plan_is_committed() -> None:
    plan = read_plan()
    wanted = {f"{name}-{data}" for name, experiment in plan.experiments.items() for data in experiment.data}
    assert {path.stem for path in COMMITTED} == wanted
    models = {name: plan.model_key(name) for name, model in plan.models.items() if model.source is None}
    assert {name: told["key"] for name, told in read_models(RESULTS).items()} == models


def test_committed_numbers_are_what_committed_rows_say() -> None:
    """The tables, the page of them all, and the tables on the page about the paper's claims."""
    plan, drawn = read_plan(), list[Drawn]()
    work = Reproduction(plan, RESULTS, draw_only=True)
    for name, experiment in plan.experiments.items():
        for data in experiment.data:
            file = RESULTS / "tables" / f"{name}-{data}"
            drawn.append(tell(plan, experiment, data, work.rows)[0])
            assert drawn[-1].table.to_markdown() == file.with_suffix(".md").read_text(), file.name
            assert drawn[-1].table.to_csv() == file.with_suffix(".csv").read_text(), file.name
            for kind in ("png", "svg"):
                assert (RESULTS / "figures" / f"{file.name}.{kind}").is_file()
    assert len(drawn) == len(COMMITTED)
    assert page(plan, drawn, read_models(RESULTS)) == (RESULTS / "README.md").read_text()
    claims = (RESULTS.parent / "reproduction.md").read_text()
    for name, table in runpy.run_path(str(RESULTS / "claims.py"))["tables"](RESULTS).items():
        assert table in claims, name


def test_committed_figures_are_what_committed_rows_say() -> None:
    """Number by number: the same words and shapes, at the same places. Another matplotlib draws otherwise."""
    pins = (ROOT / "constraints.txt").read_text()
    if f"matplotlib=={matplotlib.__version__}\n" not in pins:
        pytest.skip("the figures were drawn by another matplotlib")
    plan = read_plan()
    work = Reproduction(plan, RESULTS, draw_only=True)
    for name in ("table1-imagenet", "curves-fashion-mnist", "segments-mnist"):  # one of each kind
        kind, _, data = name.partition("-")
        _, found = tell(plan, plan.experiments[kind], data, work.rows)
        figure = charts.CHARTS[plan.experiments[kind].draw](plan, plan.experiments[kind], data, found)
        committed = (RESULTS / "figures" / f"{name}.svg").read_text()
        (words, numbers), (drawn, places) = (_split(text) for text in (committed, to_bytes(figure, "svg").decode()))
        assert words == drawn, name
        np.testing.assert_allclose(numbers, places, atol=0.01, err_msg=name)


def _split(svg: str) -> tuple[list[str], list[float]]:
    number = r"-?\d+\.\d+"
    return re.split(number, svg), [float(found) for found in re.findall(number, svg)]


def test_every_number_that_the_page_of_claims_tells_is_in_a_table_beside_it() -> None:
    """Numbers with decimals, in the tables of the same section or in the files that it links to."""
    page, plan = RESULTS.parent / "reproduction.md", read_plan()
    sections = re.split(r"^##", page.read_text().partition("## Claim by claim")[2], flags=re.MULTILINE)
    assert len(sections) > 5
    seen = 0
    for section in sections:
        lines = section.splitlines()
        told = [line for line in lines if line.startswith("|")]
        told += [(page.parent / name).read_text() for name in re.findall(r"\]\((results/tables/[^)]*)\)", section)]
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", " ".join(line for line in lines if not line.startswith("|")))
        numbers = set(re.findall(r"\d+\.\d+", prose)) - {str(plan.alpha)}
        radii = {f"{e.radius:g}" for e in plan.experiments.values()}
        assert not numbers - radii - set(re.findall(r"\d+\.\d+", " ".join(told))), lines[0]
        seen += len(numbers)
    assert seen > 10


def test_committed_rows_are_whole() -> None:
    plan = read_plan()
    work = Reproduction(plan, RESULTS, draw_only=True)
    for path in COMMITTED:
        name, _, data = path.stem.partition("-")
        experiment = plan.experiments[name]
        for cell in cells_of(plan, experiment, data, sigmas_of(plan, experiment, data, work.rows)).values():
            method = read_frame(work.rows(cell))
            assert len(method) == plan.data[data].images
            assert len(set(method.idx.tolist())) == len(method)
            assert method.settings.alpha == plan.alpha


def committed_table(name: str) -> list[dict[str, str]]:
    with (RESULTS / "tables" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_readmes_numbers_are_in_the_tables() -> None:
    found = {row["method"]: row["at 0.25"] for row in committed_table("curves-mnist") if row["sigma"] == "0.5"}
    readme = (RESULTS.parent.parent / "README.md").read_text()
    soft, blur, plain = found["soft, 4 shifts"], found["blur"], found["RS"]
    wanted = f"certify {soft}%, a blur chosen on training images {blur}%, plain smoothing {plain}%"
    assert f"At sigma 0.5 and radius 0.25, soft superpixels {wanted}" in " ".join(readme.split())
    sample = "ImageNet sample, ten labels"
    titles = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "imagenet": sample}
    for data, title in titles.items():
        rows = {row["method"]: row["certified accuracy at 0.01, %"] for row in committed_table(f"table1-{data}")}
        shares = " | ".join(rows[method] for method in ("RS", "blur", "SLIC", "soft, 4 shifts"))
        assert f"| {title} | {shares} |" in readme


def test_the_tables_on_partitions_are_what_their_rows_say() -> None:
    script = runpy.run_path(str(RESULTS / "partitions.py"))
    first, second = script["tables"](RESULTS / "partitions").split("\n\n")
    assert first.count("superpixels") == 6
    page = (RESULTS / "partitions.md").read_text()
    assert first in page
    assert second in page
    assert script["imagenet"](RESULTS / "partitions") in page
