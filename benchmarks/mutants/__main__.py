"""Make mutants of the modules that claims depend on, and run the tests that execute what was changed.

`make mutants` takes hours of one core. The outcomes go to table.tsv and summary.md beside this file.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.mutants import covering
from benchmarks.mutants.children import TOO_LONG, Exchange, run_child
from benchmarks.mutants.covering import PACKAGE, ROOT, Covered, Recorder
from benchmarks.mutants.operators import Change, Mutant, list_mutants

MODULES = [
    "smoothing/bounds", "smoothing/sampling", "smoothing/confidence_sequence", "smoothing/votes",
    "smoothing/scoring", "smoothing/local_votes", "smoothing/certification",
    "smoothing/certificate", "smoothing/consistency", "model/scores", "noise/quantised", "verification/run",
    "verification/images", "verification/replay", "segmentation/holm", "segmentation/segmenter",
    "segmentation/counting", "patches/double_masking", "label_sets/calibration", "label_sets/calibrated", "runs/check",
    "dither/certificate", "dither/thresholds",
]  # fmt: skip
# The tests of these modules. Slow ones and those that start processes are left out.
TESTS = (
    "soundness/test_bounds", "soundness/test_sampling", "soundness/test_certificate", "soundness/test_exact",
    "soundness/test_segmentation", "soundness/test_patches", "contract/test_consistency", "contract/test_scores",
    "segmentation/test_segment", "runs/test_label_sets",
    "runs/test_verify", "runs/test_received", "runs/test_binding", "soundness/test_classifier",
    "soundness/test_coverage", "soundness/test_arithmetic", "runs/test_dataset", "runs/test_denoised_runs",
    "contract/test_engine", "soundness/test_forged_runs", "soundness/test_forged_maps", "soundness/test_forged_patches",
    "soundness/test_forged_predictions", "soundness/test_forged_sets", "soundness/test_dither",
)  # fmt: skip
LEFT_OUT = ("slow", "browser", "ray", "needs_data")
HERE = Path(__file__).resolve().parent
TABLE, EQUIVALENT, SUMMARY = HERE / "table.tsv", HERE / "equivalent.tsv", HERE / "summary.md"
WORK = ROOT / "build" / "mutants"
NAME = ("module", "function", "before", "after", "nth")
KINDS = ("killed", "timed out", "survived", "equivalent")
PASSED, FAILED = 0, 1
Key = tuple[str, str, str, str, int]
Outcomes = dict[Key, tuple[str, str]]  # killed, timed out, survived or equivalent; the test, or the reason


def main() -> None:
    options = parse_options()
    (WORK / "tmp").mkdir(parents=True, exist_ok=True)
    # A name as that of a worker lets all children share the models that fixtures train.
    os.environ |= {"PYTEST_XDIST_WORKER": "mutants", "PYTEST_XDIST_WORKER_COUNT": "2"}
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # threads of OpenMP do not survive a fork
    os.chdir(ROOT)
    files = [f"src/pprs/{module}.py" for module in MODULES] + [f"tests/{name}.py" for name in TESTS]
    basetemp = ["--basetemp", str(WORK / "tmp" / "base")]
    quiet = ["-q", "-s", "-p", "no:cacheprovider", "--tb=no", "--no-header", "--rootdir", str(ROOT), *basetemp]
    sys.exit(pytest.main([*quiet, *files], plugins=[Measurement(options)]))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--each", type=int, default=19, help="mutants of each module, if it has as many")
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds of tests for a mutant")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are in the sample")
    parser.add_argument("--limit", type=int, help="only as many, for a trial: the table stays as it is")
    parser.add_argument("--survivors", action="store_true", help="only those that survived, according to the table")
    parser.add_argument("--resume", action="store_true", help="only those that are not in the table")
    return parser.parse_args()


class Measurement:
    """A pytest plugin that runs tests in children instead of running them one after the other."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._items = options, dict[str, pytest.Item]()
        self._sources = {module: (PACKAGE / f"{module}.py").read_text(encoding="utf-8") for module in MODULES}
        self._failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(item.get_closest_marker(name) for name in LEFT_OUT)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        tests = self._map_tests()
        print(f"{len(tests)} of {len(self._items)} tests execute something of the {len(MODULES)} modules", flush=True)
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
            path = WORK / f"{Path(file).stem}-{covering.digest(ROOT / file)}.json"
            items = [item for name, item in self._items.items() if name.partition("::")[0] == file]
            if not path.exists():
                began = time.monotonic()
                code = run_child(lambda: self._record(items, path), WORK / "log", 900)  # noqa: B023
                print(f"{file}: {len(items)} tests, {time.monotonic() - began:.0f} s, exit {code}", flush=True)
            if path.exists():
                found += [test for test in covering.read_tests(path, self._sources) if test.name in self._items]
        return found

    def _record(self, items: list[pytest.Item], path: Path) -> int:
        recorder = Recorder(MODULES)
        for item, following in zip(items, [*items[1:], None], strict=True):
            recorder.record(item.nodeid, lambda: self._run(item, following))  # noqa: B023
        covering.write_tests(path, recorder.tests, self._sources)
        return PASSED

    # ---- what they find

    def _measure(self, tests: list[Covered]) -> None:
        before, reasons, exchange = read_table(), read_equivalent(), Exchange()
        sample = self._choose(before)
        outcomes: Outcomes = dict(before) if self._options.survivors or self._options.resume else {}
        for number, (mutant, change) in enumerate(sample, 1):
            began, key = time.monotonic(), mutant.key
            is_equivalent = key in reasons
            outcomes[key] = (
                ("equivalent", reasons[key]) if is_equivalent else self._judge(mutant, change, tests, exchange)
            )
            what = f"{mutant.module}:{mutant.lines[0]} {mutant.before} -> {mutant.after}"
            outcome, by = outcomes[key]
            print(f"{number}/{len(sample)} {outcome} {time.monotonic() - began:.0f} s {what} [{by}]", flush=True)
            if self._options.limit is None:
                write_table(outcomes)
        print(summarise(outcomes), flush=True)
        if self._options.limit is None:
            SUMMARY.write_text(summarise(outcomes) + "\n", encoding="utf-8")

    def _choose(self, before: Outcomes) -> list[tuple[Mutant, Change]]:
        """A sample with as many mutants of each module. Modules take turns."""
        chosen = []
        for module, source in self._sources.items():
            ranked = sorted(list_mutants(module, source), key=lambda pair: pair[0].rank(self._options.seed))
            chosen.append(ranked[: self._options.each])
        turns = [part[i] for i in range(max(map(len, chosen))) for part in chosen if i < len(part)]
        if self._options.survivors:
            turns = [pair for pair in turns if before.get(pair[0].key, ("",))[0] == "survived"]
        elif self._options.resume:
            turns = [pair for pair in turns if pair[0].key not in before]
        return turns[: self._options.limit]

    def _judge(self, mutant: Mutant, change: Change, tests: list[Covered], exchange: Exchange) -> tuple[str, str]:
        chosen = covering.choose_tests(mutant, tests, self._sources[mutant.module], self._options.seconds)
        if not chosen:
            return "survived", "no test executes it"
        found = WORK / "found"
        found.unlink(missing_ok=True)

        def work() -> int:
            exchange.install(mutant.module, change())
            items = [self._items[test.name] for test in chosen]
            for item, following in zip(items, [*items[1:], None], strict=True):
                if not self._run(item, following):
                    found.write_text(self._failed, encoding="utf-8")
                    return FAILED
            return PASSED

        code = run_child(work, WORK / "log", 20 + 3 * sum(test.seconds for test in chosen))
        if code == PASSED:
            return "survived", f"{len(chosen)} tests"
        if code == TOO_LONG:
            return "timed out", ""
        return "killed", found.read_text(encoding="utf-8") if found.exists() else f"exit {code}"


# ---- tables


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def key_of(row: dict[str, str]) -> Key:
    return row["module"], row["function"], row["before"], row["after"], int(row["nth"])


def read_table() -> Outcomes:
    return {key_of(row): (row["outcome"], row["by"]) for row in read_rows(TABLE)}


def read_equivalent() -> dict[Key, str]:
    """The mutants that change nothing that a claim depends on, each with the reason."""
    return {key_of(row): row["reason"] for row in read_rows(EQUIVALENT)}


def write_table(outcomes: Outcomes) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow([*NAME, "outcome", "by"])
        writer.writerows([*key, *result] for key, result in sorted(outcomes.items()))


def summarise(outcomes: Outcomes) -> str:
    """Count outcomes by module. Equivalent mutants do not count, and those that end in a time limit are found."""
    counts = {
        module: Counter(outcome for key, (outcome, _) in outcomes.items() if key[0] == module) for module in MODULES
    }
    counts["together"] = sum(counts.values(), Counter[str]())
    lines = [f"| module | {' | '.join(KINDS)} | found |", f"|---|{'--:|' * (len(KINDS) + 1)}"]
    for module, count in counts.items():
        found, asked = count["killed"] + count["timed out"], sum(count.values()) - count["equivalent"]
        share = f"{100 * found / asked:.1f}%" if asked else "–"
        lines.append(f"| {module} | {' | '.join(str(count[kind]) for kind in KINDS)} | {share} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
