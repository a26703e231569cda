from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# Tests run side by side, and OpenMP's waiting threads would spin on the cores that others need. Read when torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pytest
import redrawn
import torch
from filelock import FileLock
from hypothesis import settings
from warm_kernels import list_compilations

from pprs._support.threads import cpu_count

# The same examples on every machine, and no limit on the time of one: a busy machine is not a failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("repeatable")

HERE = Path(__file__).resolve().parent
DATA = "PPRS_TEST_DATA"
NO_BROWSER = "no Chromium with its driver: apt-get install chromium chromium-driver"


# ---- what may be skipped


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip", action="store_true", default=bool(os.environ.get("CI")),
        help="fail if a test is skipped that is not marked needs_data (default where CI is set)",
    )  # fmt: skip
    parser.addoption(
        "--unless-redrawn", action="store_true",
        help="leave out the tests marked redraw if nothing that they depend on has changed since they last passed",
    )  # fmt: skip
    parser.addoption(
        "--note-redrawn", action="store_true",
        help="run only the tests marked redraw, in this process, and note in tests/golden/redrawn.json that they pass",
    )  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose tests by whether they draw again what is committed. What is left out is reported as deselected."""
    for item in items:
        if "quick" in getattr(item, "fixturenames", ()):  # the folder of the quick plan
            item.add_marker("redraw")
    noting = config.getoption("--note-redrawn")
    if noting or (config.getoption("--unless-redrawn") and redrawn.is_current()):
        parts: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            parts[bool(item.get_closest_marker("redraw")) == noting].append(item)
        items[:] = parts[True]
        config.hook.pytest_deselected(items=parts[False])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--note-redrawn") and exitstatus == pytest.ExitCode.OK:
        redrawn.write_note()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_data") and not os.environ.get(DATA):
        pytest.skip(f"set {DATA} to the folder that holds imagenet-sample")
    if item.get_closest_marker("browser") and not (find_browser() and shutil.which("chromedriver")):
        pytest.skip(NO_BROWSER)


def find_browser() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


class Skips:
    """Fails the session if a test was skipped that may not be. It sees the reports of all xdist workers."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "needs_data" not in report.keywords:
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            where = report.longrepr
            self.reasons[report.nodeid] = where[2] if isinstance(where, tuple) else str(where)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.reasons and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.reasons:
            terminalreporter.section(f"failed, since {len(self.reasons)} tests were skipped", red=True)
        for name, reason in sorted(self.reasons.items()):
            terminalreporter.line(f"{name}: {reason}")


class Compilations:
    """Reports kernels that xdist's workers had to compile, so that they are compiled before the next time."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["compilations"] = list_compilations()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.names += getattr(node, "workeroutput", {}).get("compilations", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.names:
            many = len(self.names)
            terminalreporter.line(f"workers compiled {many} kernels: add their cases to tests/warm_kernels.py")
        for name in sorted(set(self.names)):
            terminalreporter.line(f"  {name}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Compilations())
    if config.getoption("--fail-on-skip") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips())


# ---- before the tests


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels before xdist starts its workers."""
    if getattr(session.config.option, "numprocesses", None) and not session.config.option.collectonly:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, HERE / "warm_kernels.py"], env=environment, check=True)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  for libraries that draw from the global stream
    # Tests run side by side: threads of one that wait would take the time of another.
    beside = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, cpu_count() // beside))


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep exported networks for this session only."""
    os.environ["PPRS_CACHE"] = str(tmp_path_factory.mktemp("cache"))


# ---- what tests ask for


@pytest.fixture
def golden() -> Path:
    """The folder of reference values that were computed outside the project."""
    return HERE / "golden" / "values"


@pytest.fixture
def imagenet_sample() -> Path:
    """The folder of a hundred ImageNet images, which may not be redistributed. For tests marked `needs_data`."""
    folder = Path(os.environ[DATA]) / "imagenet-sample"
    assert folder.is_dir(), f"{DATA} is set, and {folder} is no folder"
    return folder


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Fill a folder once for all test processes; the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, done = root / f"once-{name}", root / f"once-{name}.done"
        with FileLock(root / f"once-{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def digits_model(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A small network trained briefly on the built-in digits."""
    from pprs.data import open_dataset
    from pprs.training.trainer import Recipe, train

    def trained(folder: Path) -> None:
        data = open_dataset("builtin:mnist5k", split="train")
        train(data, Recipe(epochs=4, width=8), out=folder / "digits.safetensors", data_name="builtin:mnist5k")

    return once("model", trained) / "digits.safetensors"
