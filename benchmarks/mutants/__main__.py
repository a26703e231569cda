"""Make mutants of the modules that claims depend on, and run the tests that execute what was changed.

`make mutants` takes hours of one core. The outcomes go to table.tsv and summary.md beside this file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.mutants import covering
from benchmarks.mutants.children import TOO_LONG, Exchange, run_child
from benchmarks.mutants.covering import PACKAGE, ROOT, Covered, Recorder
from benchmarks.mutants.earlier import find_same
from benchmarks.mutants.operators import Change, Key, Mutant, list_mutants, rank
from benchmarks.mutants.tables import (
    BEFORE,
    SUMMARY,
    TABLE,
    Outcomes,
    read_equivalent,
    read_outcomes,
    summarise,
    write_outcomes,
)

MODULES = [
    "smoothing/bounds", "smoothing/sampling", "smoothing/confidence_sequence", "smoothing/votes", "smoothing/scoring",
    "smoothing/local_votes", "smoothing/certification", "smoothing/certificate", "smoothing/consistency",
    "smoothing/samples", "smoothing/arithmetic", "model/scores", "noise/base", "noise/gaussian", "noise/exponential",
    "noise/power_law", "noise/neyman_pearson", "noise/quantised", "verification/run", "verification/images",
    "verification/replay", "segmentation/holm", "segmentation/segmenter", "segmentation/counting",
    "segmentation/groups", "segmentation/row", "patches/double_masking", "patches/masks", "patches/row",
    "label_sets/scores", "label_sets/calibration", "label_sets/calibrated", "label_sets/row", "prediction/row",
    "runs/check", "runs/binding", "dither/certificate", "dither/thresholds", "dither/classifier",
]  # fmt: skip
# The tests of these modules. Those that start processes or train are left out.
TESTS = (
    "soundness/test_bounds", "soundness/test_sampling", "soundness/test_certificate", "soundness/test_exact",
    "soundness/test_segmentation", "soundness/test_patches", "contract/test_consistency", "contract/test_scores",
    "segmentation/test_segment", "runs/test_label_sets", "runs/test_verify", "runs/test_received", "runs/test_binding",
    "soundness/test_classifier", "soundness/test_coverage", "soundness/test_arithmetic", "runs/test_dataset",
    "runs/test_denoised_runs", "contract/test_engine", "soundness/test_forged_runs", "soundness/test_forged_maps",
    "soundness/test_forged_patches", "soundness/test_forged_predictions", "soundness/test_forged_sets",
    "soundness/test_dither", "soundness/test_theory", "soundness/test_oracle", "soundness/test_signals",
    "contract/test_noise", "contract/test_patch_masks", "contract/test_domains", "segmentation/test_runs",
    "runs/test_predictions", "runs/test_patch_runs", "runs/test_set_runs", "runs/test_run", "runs/test_signal_runs",
    "runs/test_kinds", "runs/test_mixed_images", "runs/test_labels", "runs/test_drift", "runs/test_own_guarantees",
    "soundness/test_audit", "contract/test_contracts", "contract/test_limits",
)  # fmt: skip
LEFT_OUT = ("browser", "ray", "needs_data")
SLOW = ("tests/soundness/", "tests/contract/test_noise.py")  # whose slow tests are only long computations
WORK = ROOT / "build" / "mutants"
PASSED, FAILED = 0, 1


def main() -> None:
    options = parse_options()
    (WORK / "tmp").mkdir(parents=True, exist_ok=True)
    # A name as that of a worker lets all children share the models that fixtures train.
    os.environ |= {"PYTEST_XDIST_WORKER": "mutants", "PYTEST_XDIST_WORKER_COUNT": "2"}
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # threads of OpenMP do not survive a fork
    os.chdir(ROOT)
    measurement = Measurement(options)
    files = [f"src/pprs/{module}.py" for module in measurement.sources] + [f"tests/{name}.py" for name in TESTS]
    files = [file for file in files if (ROOT / file).exists()]  # an earlier commit lacks some
    basetemp = ["--basetemp", str(WORK / "tmp" / "base")]
    quiet = ["-q", "-s", "-p", "no:cacheprovider", "--tb=no", "--no-header", "--rootdir", str(ROOT), *basetemp]
    sys.exit(pytest.main([*quiet, *files], plugins=[measurement]))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=10, help="mutants of each module, if it has as many")
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds of tests for a mutant")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are in the sample")
    parser.add_argument("--limit", type=int, help="only as many, for a trial: the table stays as it is")
    parser.add_argument("--survivors", action="store_true", help="only those that survived, according to the table")
    parser.add_argument("--resume", action="store_true", help="only those that are not in the table")
    table_of = "those in the table of this checkout that are here too: what is found goes to its before.tsv"
    parser.add_argument("--table-of", type=Path, metavar="FOLDER", help=table_of)
    return parser.parse_args()


class Measurement:
    """A pytest plugin that runs tests in children instead of running them one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._items, self._failed = options, dict[str, pytest.Item](), ""
        self._mutants = find_mutants(options.table_of)
        self._sample = [*self._mutants] if options.table_of else choose_sample(self._mutants, options)
        self._table = options.table_of / BEFORE.relative_to(ROOT) if options.table_of else TABLE
        # A table can hold some of code that has been changed since.
        self._before = {key: outcome for key, outcome in read_outcomes(self._table).items() if key in self._mutants}
        modules = dict.fromkeys(mutant.module for mutant, _ in self._mutants.values())
        self.sources = {module: (PACKAGE / f"{module}.py").read_text(encoding="utf-8") for module in modules}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if not any(item.get_closest_marker(name) for name in LEFT_OUT)]
        items[:] = [item for item in chosen if item.nodeid.startswith(SLOW) or not item.get_closest_marker("slow")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        tests = self._map_tests()
        print(f"{len(tests)} of {len(self._items)} tests execute something of {len(self.sources)} modules", flush=True)
        self._measure(tests)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = self._failed or report.nodeid

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> bool:
        self._failed = ""
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self._failed

    # ---- which tests execute what

    def _map_tests(self) -> list[Covered]:
        """One file of tests at a time, each once for each state of the file."""
        found = list[Covered]()
        for file in dict.fromkeys(name.partition("::")[0] for name in self._items):
            path = WORK / f"{Path(file).stem}-{covering.digest(ROOT / file, self.sources)}.json"
            items = [item for name, item in self._items.items() if name.partition("::")[0] == file]
            if not path.exists():
                began = time.monotonic()
                code = run_child(lambda: self._record(items, path), WORK / "log", 900)  # noqa: B023
                print(f"{file}: {len(items)} tests, {time.monotonic() - began:.0f} s, exit {code}", flush=True)
            if path.exists():
                found += [test for test in covering.read_tests(path, self.sources) if test.name in self._items]
        return found

    def _record(self, items: list[pytest.Item], path: Path) -> int:
        recorder = Recorder([*self.sources])
        for item, following in zip(items, [*items[1:], None], strict=True):
            recorder.record(item.nodeid, lambda: self._run(item, following))  # noqa: B023
        covering.write_tests(path, recorder.tests, self.sources)
        return PASSED

    # ---- what they find

    def _measure(self, tests: list[Covered]) -> None:
        reasons, exchange, outcomes = read_equivalent(), Exchange(), self._before.copy()
        keys = self._choose()
        if not (self._options.survivors or self._options.resume):
            outcomes.clear()
        for number, key in enumerate(keys, 1):
            began, (mutant, change) = time.monotonic(), self._mutants[key]
            outcomes[key] = (
                ("equivalent", reasons[key]) if key in reasons else self._judge(mutant, change, tests, exchange)
            )
            what = f"{mutant.module}:{mutant.lines[0]} {mutant.before} -> {mutant.after}"
            outcome, by = outcomes[key]
            print(f"{number}/{len(keys)} {outcome} {time.monotonic() - began:.0f} s {what} [{by}]", flush=True)
            if self._options.limit is None:
                write_outcomes(self._table, outcomes)
        if self._options.limit is None:
            write_outcomes(self._table, outcomes)
        if self._options.limit is None and not self._options.table_of:
            SUMMARY.write_text(summarise(outcomes, MODULES, self._describe(outcomes)), encoding="utf-8")

    def _describe(self, outcomes: Outcomes) -> str:
        options, left = self._options, len({*self._sample} - {*outcomes})
        asked = sum(what != "equivalent" for what, _ in outcomes.values())
        state = f"Not finished, {left} of the sample are left" if left else "Finished"
        return (
            f"{state}: {asked} mutants that are not equivalent, a sample of {options.each} for each module.\n"
            "The quickest tests that execute what was changed were asked about each of them, "
            f"for up to {options.seconds:g} CPU seconds."
        )

    def _choose(self) -> list[Key]:
        """Those to ask about now."""
        keys = self._sample
        if self._options.survivors:
            keys = [key for key, outcome in self._before.items() if outcome[0] in ("survived", "equivalent")]
        elif self._options.resume:
            keys = [key for key in keys if key not in self._before]
        return keys[: self._options.limit]

    def _judge(self, mutant: Mutant, change: Change, tests: list[Covered], exchange: Exchange) -> tuple[str, str]:
        chosen, all_tests = covering.choose_tests(mutant, tests, self.sources[mutant.module], self._options.seconds)
        if not chosen:
            return "survived", "no test executes it"
        found = WORK / "found"
        found.unlink(missing_ok=True)

        def work() -> int:
            try:
                exchange.install(mutant.module, change())
            except Exception:  # so would an import
                found.write_text("import", encoding="utf-8")
                return FAILED
            items = [self._items[test.name] for test in chosen]
            for item, following in zip(items, [*items[1:], None], strict=True):
                if not self._run(item, following):
                    found.write_text(self._failed, encoding="utf-8")
                    return FAILED
            return PASSED

        code = run_child(work, WORK / "log", 20 + 3 * sum(test.seconds for test in chosen))
        if code == PASSED:
            return "survived", f"{'the quickest ' * (len(chosen) < all_tests)}{len(chosen)} of {all_tests} tests"
        if code == TOO_LONG:
            return "timed out", ""
        return "killed", found.read_text(encoding="utf-8") if found.exists() else f"exit {code}"


# ---- samples


def find_mutants(checkout: Path | None) -> dict[Key, tuple[Mutant, Change]]:
    """All mutants of the modules, or those in the table of another checkout that are here too, by their names there."""
    if checkout is not None:
        keys = read_outcomes(checkout / TABLE.relative_to(ROOT))
        return find_same(keys, checkout / PACKAGE.relative_to(ROOT), PACKAGE)
    found = dict[Key, tuple[Mutant, Change]]()
    for module in MODULES:
        source = (PACKAGE / f"{module}.py").read_text(encoding="utf-8")
        found |= {mutant.key: (mutant, change) for mutant, change in list_mutants(module, source)}
    return found


def choose_sample(mutants: Iterable[Key], options: argparse.Namespace) -> list[Key]:
    """As many mutants of each module. Modules take turns."""
    ranked = sorted(mutants, key=lambda key: rank(key, options.seed))
    parts = [[key for key in ranked if key[0] == module][: options.each] for module in MODULES]
    return [part[i] for i in range(options.each) for part in parts if i < len(part)]


if __name__ == "__main__":
    main()
