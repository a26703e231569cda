"""One plan, every figure and table of the paper; what is committed is what its rows say."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import pprs
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pprs import PprsError
from pprs.cli.common import make_noise
from pprs.cli.workshop import Workshop
from pprs.report import Method, read
from pprs.reproduce import Drawn, cells_of, charts, page, read_models, read_plan, sigmas_of
from pprs.reproduce.match import LEAST, MOST, matching_sigma
from pprs.reproduce.plan import Line
from pprs.reproduce.tables import TABLES, Table, gain, radius
from pprs.stop import Plan as Sampling
from pprs.stop import check_reach

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
NAMES = ("table1", "curves", "methods", "segments", "sigma", "noises", "training", "gallery")
QUICK = ROOT / "src" / "pprs" / "reproduce" / "quick.toml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quick") / "out"
    pprs("reproduce", "all", "--quick", "--out", out, "--threads", 1)
    return out


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.timeout(900)
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
    rows, runs = stamps(made / "rows"), stamps(made / "runs")
    pprs("reproduce", "table1,noises", "--quick", "--out", made)
    assert stamps(made / "rows") == rows
    assert stamps(made / "runs") == runs


def test_figures_are_drawn_anew_from_rows_alone(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "rows", tmp_path / "rows")
    pprs("reproduce", "all", "--quick", "--out", tmp_path, "--draw-only")
    for kind in ("tables", "figures"):
        for path in sorted((made / kind).iterdir()):
            assert (tmp_path / kind / path.name).read_bytes() == path.read_bytes(), path.name
    rows = sorted((made / "rows").glob("*_gaussian-0.25_rs.parquet"))
    pprs("report", *rows, "--out", tmp_path / "r.md")


def test_rows_of_another_plan_are_not_taken(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "rows", tmp_path / "rows")
    other = tmp_path / "other.toml"
    other.write_text(QUICK.read_text().replace("n = 100\n", "n = 200\n"))
    told = pprs("reproduce", "curves", "--plan", other, "--out", tmp_path, "--draw-only", code=2)
    assert "made by another plan" in told.stderr


def test_what_cannot_be_made_does_not_stop_the_rest(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "rows", tmp_path / "rows")
    (tmp_path / "rows" / "digits_digits_gaussian-0.5_rs.parquet").unlink()
    told = pprs("reproduce", "curves,noises", "--quick", "--out", tmp_path, "--draw-only", code=2)
    assert "1 could not be made:" in told.stderr
    assert (tmp_path / "tables" / "noises-digits.md").is_file()
    assert not (tmp_path / "tables" / "curves-digits.md").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"grid", "blur"]', '"grit", "blur"]', 'no method is called "grit". Did you mean "grid"'),
        ('draw = "sweep"', 'draw = "sweeps"', 'cannot draw "sweeps"'),
        ("alpha = 0.001", "alpa = 0.001", '"alpa" means nothing'),
        ("images = 20", "", 'data digits does not say "images"'),
        ('"slic:n_segments={}"', '"slic:segments={}"', 'no option "segments"'),
        ('partition = "quickshift"', 'partition = "quikshift"', 'unknown partition "quikshift"'),
        ('"noise@rs"', '"noisy@rs"', 'no model is called "digits-noisy"'),
        ('"exponential/rs"', '"laplace/rs"', 'no noise is called "laplace"'),
        ("n0 = 20", "n0 == 20", "is not TOML"),
        ("sigmas = { digits = [0.3] }", "sigmas = { cats = [0.3] }", 'no data is called "cats"'),
        ('"radius:0.01,0.1"', '"radios:0.1"', "no rule to stop"),
        ('"radius:0.01,0.1"', '{ digits = "radios:0.1" }', "no rule to stop"),
        ('"radius:0.01,0.1"', "{ digits = 0.1 }", "0.1 is not a text in quotes"),
        ('"radius:0.01,0.1"', '{ digit = "radius:0.1" }', 'a stop rule for "digit", which it is not about'),
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
                check_reach(sampling, make_noise(cell.noise, cell.sigma), pixels[data], 10)


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
    rules = ["radius:0.1", "radius:0.25,0.1", "radius:0.1,0.25,0.5", "radius:0.25", "abstain"]
    experiments = {rule: dataclasses.replace(base, name=rule, stop=rule, sigmas={"mnist": (0.5,)}) for rule in rules}
    experiments["elsewhere"] = dataclasses.replace(base, stop="radius:0.1,0.2", sigmas={"mnist": (0.6,)})
    plan = dataclasses.replace(plan, experiments=experiments)
    taken = {rule: plan.cell(experiments[rule], "mnist", rs, 0.5).stop for rule in rules}
    most = "radius:0.1,0.25,0.5"
    # For 0.25 alone sampling is given up earlier than for 0.1 and 0.25: that is another rule.
    assert taken == dict(zip(rules, [most, most, most, "radius:0.25", "abstain"], strict=True))


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


def rows_of(radius: list[float], right: list[bool]) -> Method:
    count = len(radius)
    nan, label = np.full(count, np.nan), np.zeros(count, np.int64)
    said = np.where(right, 0, 1)
    return Method("m", np.arange(count), label, said, np.array(radius), nan, nan, nan, nan, np.zeros(count, bool))


def test_gain_is_image_by_image() -> None:
    one = rows_of([0.5, 0.5, 0.5, 0.1], [True, True, True, True])
    other = rows_of([0.5, 0.1, 0.5, 0.1], [True, True, False, True])
    ahead, error = gain(one, other, 0.25)
    assert ahead == pytest.approx(50.0)
    assert error == pytest.approx(100 * 3.182446 * np.std([0, 1, 1, 0], ddof=1) / 2, rel=1e-5)
    assert math.isnan(gain(one, rows_of([0.5], [True]), 0.25)[0])


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
    rows = dataclasses.replace(rows_of([0.1, 0.3, 0.2], [True, True, True]), settings={"stop": "radius:0.1,0.25"})
    if stop == "abstain":
        rows = dataclasses.replace(rows, settings={})
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
    assert table.markdown() == "| name | x |\n| --- | ---: |\n| a | 1.5 |\n| b | – |\n"
    assert table.csv() == "name,x\na,1.5\nb,\n"


def test_radii_in_tables_are_never_rounded_up() -> None:
    assert radius(0.2169999) == "0.216"
    assert radius(math.nan) == "–"


COMMITTED = sorted((RESULTS / "tables").glob("*.md"))


NOT_RUN = {"training-fashion-mnist", "gallery-cat"}  # and the page of claims says so


def test_all_else_of_the_plan_is_committed() -> None:
    plan = read_plan()
    wanted = {f"{name}-{data}" for name, experiment in plan.experiments.items() for data in experiment.data}
    assert {path.stem for path in COMMITTED} == wanted - NOT_RUN
    claims = (RESULTS.parent / "reproduction.md").read_text()
    assert all(f"`pprs reproduce {name.replace('-', ' --data ', 1)}`" in claims for name in NOT_RUN)


def test_committed_numbers_are_what_committed_rows_say() -> None:
    """The tables, the page of them all, and the tables on the page about the paper's claims."""
    plan, drawn = read_plan(), list[Drawn]()
    workshop = Workshop(plan, RESULTS, None, draw_only=True, threads=1)
    for name, experiment in plan.experiments.items():
        for data in experiment.data:
            file = RESULTS / "tables" / f"{name}-{data}"
            if file.name in NOT_RUN:
                continue
            sigmas = sigmas_of(plan, experiment, data, workshop.rows)
            cells = cells_of(plan, experiment, data, sigmas)
            found = {at: read(workshop.rows(cell)) for at, cell in cells.items()}
            drawn.append(Drawn(experiment, data, sigmas, TABLES[experiment.draw](plan, experiment, data, found)))
            assert drawn[-1].table.markdown() == file.with_suffix(".md").read_text(), file.name
            assert drawn[-1].table.csv() == file.with_suffix(".csv").read_text(), file.name
            for kind in ("png", "svg"):
                assert (RESULTS / "figures" / f"{file.name}.{kind}").is_file()
    assert len(drawn) == len(COMMITTED)
    assert page(plan, drawn, read_models(RESULTS)) == (RESULTS / "README.md").read_text()
    claims = (RESULTS.parent / "reproduction.md").read_text()
    for name, table in runpy.run_path(str(RESULTS / "claims.py"))["tables"](RESULTS).items():
        assert table in claims, name


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
    workshop = Workshop(plan, RESULTS, None, draw_only=True, threads=1)
    for path in COMMITTED:
        name, _, data = path.stem.partition("-")
        experiment = plan.experiments[name]
        for cell in cells_of(plan, experiment, data, sigmas_of(plan, experiment, data, workshop.rows)).values():
            method = read(workshop.rows(cell))
            assert len(method) == plan.data[data].images
            assert len(set(method.idx.tolist())) == len(method)
            assert method.settings["alpha"] == plan.alpha


def committed_table(name: str) -> list[dict[str, str]]:
    with (RESULTS / "tables" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_readmes_numbers_are_in_the_tables() -> None:
    found = {row["method"]: row["at 0.25"] for row in committed_table("curves-mnist") if row["sigma"] == "0.5"}
    readme = (RESULTS.parent.parent / "README.md").read_text()
    wanted = f"certify {found['soft, 4 shifts']}%, the best blur {found['blur']}%, plain smoothing {found['RS']}%"
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
