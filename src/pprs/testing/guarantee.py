"""The contract of guarantees."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest

from pprs.errors import ConfigurationError, DamagedError
from pprs.report import FORMATS as REPORTS
from pprs.report import make_report, write_report
from pprs.runners import Processes, run_dataset
from pprs.runs import FILE, Failure, Guarantee, Key, Run, RunFile, export, open_run
from pprs.runs.columns import Column
from pprs.runs.export import FORMATS
from pprs.runs.registry import import_place
from pprs.testing.forgery import (
    ALTERED,
    AlteredData,
    InterruptingReports,
    ListedRun,
    make_other,
    other_setting,
    other_values,
)
from pprs.testing.store import Resumption, snapshot
from pprs.verification import Verification, verify_run

AnyGuarantee = Guarantee[Any, Any]
COUNT = 6  # inputs of a run
KILLS = 6  # states of a killed run that are resumed
SECONDS = "seconds"  # the column that differs between two runs


@dataclasses.dataclass(frozen=True)
class _Finished:
    """A run that nothing disturbed."""

    folder: Path
    inputs: tuple[str, str]
    run: Run
    scratch: tempfile.TemporaryDirectory[str]  # the run lives as long as this does


class GuaranteeContract(ABC):
    """What every guarantee promises: rows that depend on their input alone, and that can be checked.

    The data must have at least 6 inputs, of which some are certified and some are not.

    Attributes:
        guarantee: The guarantee under test. It must be a value of a module that worker processes can import.
        settings: Settings of its own, as for `run_dataset`.
        options: Other keywords of `run_dataset`, such as `noise`.
        unchecked: Stored columns and own settings, a change of which no verification can find, with the reason.
        absent: Stored columns without a value in rows of earlier versions. That one was removed is not found.
    """

    guarantee: ClassVar[AnyGuarantee]
    settings: ClassVar[Mapping[str, Any]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    unchecked: ClassVar[Mapping[str, str]] = {}
    absent: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def make_inputs(self, folder: Path) -> tuple[str, str]:
        """Write a model and data into a folder, the same at each call, and return the texts that name them."""

    # ---- rows

    def test_every_input_has_its_rows_in_order(self) -> None:
        guarantee = self.guarantee
        wanted = guarantee.list_keys(range(COUNT), guarantee.settings(**self.settings))
        assert len(set(wanted)) == len(wanted), f"list_keys() returns a key twice: {wanted}"
        assert all(key[0] in range(COUNT) for key in wanted), f"a key must start with the index of an input: {wanted}"
        assert sorted({key[0] for key in wanted}) == list(range(COUNT)), f"list_keys() leaves inputs out: {wanted}"
        finished = self._finished()
        keys = finished.run.keys()
        assert keys == sorted(wanted), f"the rows have the keys {keys}, and list_keys() says {sorted(wanted)}"
        assert [guarantee.schema.key(row) for row in finished.run.rows()] == keys, "rows are not in order"

    def test_rows_name_their_input(self) -> None:
        finished = self._finished()
        data = self.guarantee.load(*finished.inputs).data
        for row in finished.run.rows():
            assert row.name == data.name_of(row.idx), f"row {row.idx} has the name {row.name!r}: see Known.name"
            assert row.image_digest, f"row {row.idx} is not bound to its input: see Answer.bind"
            assert row.shape is not None, f"row {row.idx} does not state the shape of its input"
            truth = data.truth_of(row.idx)
            for name in self.guarantee.schema.truth:
                assert _same(getattr(row, name), truth.get(name)), f"row {row.idx} states another {name} than the data"

    def test_an_answer_depends_on_its_input_alone(self) -> None:
        """Not on the inputs before it, and not on how many are given to the network together."""
        expected = self._stored(self._finished().run)
        with tempfile.TemporaryDirectory(prefix="pprs-") as folder:
            alone = self._stored(self._run(Path(folder) / "alone", images=[COUNT - 1]))
            assert _differences(alone, expected) == [], "an input has another row if it is answered alone"
            one = self._stored(self._run(Path(folder) / "one", batch_size=1))
            assert _differences(one, expected) == [], "rows depend on `batch_size`"

    def test_workers_give_the_same_rows(self) -> None:
        with tempfile.TemporaryDirectory(prefix="pprs-") as folder:
            run = self._run(Path(folder) / "run", runner=Processes(2))
            assert self._stored(run) == self._stored(self._finished().run), "workers give other rows than one process"

    # ---- resuming

    def test_resuming_adds_what_lacks(self) -> None:
        expected = self._stored(self._finished().run)
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            out = Path(name) / "run"
            before = self._stored(self._run(out, images=range(2)), seconds=True)
            answered = Resumption()
            run = self._run(out, progress=answered)
            after = self._stored(run, seconds=True)
            assert {key: after.get(key) for key in before} == before, "rows were made again"
            assert self._stored(run) == expected, "a run that was resumed has other rows"
            assert answered.resumed, "the run did not say that it was resumed"

    def test_a_killed_run_resumes_to_the_same_rows(self) -> None:
        expected = self._stored(self._finished().run)
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            states = snapshot(lambda out: self._run(out), Path(name) / "states")
            for place in np.unique(np.linspace(0, len(states) - 1, KILLS).astype(int)):
                found = self._stored(self._run(states[place]))
                assert found == expected, f"killed in state {place} of {len(states)}, it has other rows"

    def test_an_interrupted_run_resumes_to_the_same_rows(self) -> None:
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            out = Path(name) / "run"
            with pytest.raises(KeyboardInterrupt):
                self._run(out, progress=InterruptingReports(COUNT - 1))
            assert self._stored(self._run(out)) == self._stored(self._finished().run)

    def test_failures_are_recorded_and_tried_again(self) -> None:
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            out = Path(name) / "run"
            with self._altered(fail=True):
                run = self._run(out)
            failures = run.failures()
            assert {failure.idx for failure in failures} == {ALTERED}, f"the failures are {list(map(str, failures))}"
            assert all("the file is damaged" in failure.error for failure in failures)
            data = self.guarantee.load(*self._inputs()).data
            assert all(failure.name == data.name_of(failure.idx) for failure in failures), "a failure has another name"
            assert ALTERED not in {row.idx for row in run.rows()}, "an input that failed has a row"
            summary = self.guarantee.summarise(run)
            assert list(map(str, summary.failures)) == list(map(str, failures)), "summarise() leaves out failures"
            self._check_exported_failures(run, Path(name))
            assert self._stored(self._run(out)) == self._stored(self._finished().run), "it is not tried again"
            assert open_run(out, guarantee=self.guarantee).failures() == []

    def _check_exported_failures(self, run: Run, folder: Path) -> None:
        for kind in ("json", "parquet"):
            again = self._export(run, folder / f"failures.{kind}")
            assert [f.idx for f in again.failures()] == [f.idx for f in run.failures()], f"{kind} loses failures"

    def test_a_changed_input_is_refused(self) -> None:
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            out = Path(name) / "run"
            before = self._stored(self._run(out, images=range(ALTERED + 1)))
            with self._altered(), pytest.raises(ConfigurationError, match="its content has changed"):
                self._run(out)
            assert self._stored(open_run(out, guarantee=self.guarantee)) == before, "the refused call changed the run"

    def test_a_run_of_another_kind_is_refused(self) -> None:
        other = make_other(self.guarantee)
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            out = Path(name) / "run"
            self._run(out, images=range(1))
            before = (out / FILE).read_bytes()
            with pytest.raises(ConfigurationError) as error, mock.patch.object(type(self), "guarantee", other):
                self._run(out, images=range(1))
            assert error.value.parameter == "out", f"the parameter is {error.value.parameter}: {error.value}"
            assert (out / FILE).read_bytes() == before, "the refused call changed the run"

    def test_a_budget_needs_sampling_that_may_end_at_any_time(self) -> None:
        if self.guarantee.can_budget:
            return
        with tempfile.TemporaryDirectory(prefix="pprs-") as name, pytest.raises(ConfigurationError) as error:
            self._run(Path(name) / "run", budget="100samples")
        assert error.value.parameter == "budget", f"the parameter is {error.value.parameter}: {error.value}"

    # ---- what is stored

    def test_rows_survive_every_export(self) -> None:
        run, schema = self._finished().run, self.guarantee.schema
        rows = self._stored(run)
        has_maps = any(column.arrow == "binary" for column in schema.stored)
        is_log = any(column.cohen is not None for column in schema.columns)
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            for kind in FORMATS:
                if has_maps and kind in ("tsv", "csv"):
                    continue  # text has no place for maps
                again = self._export(run, Path(name) / f"rows.{kind}")
                assert again.guarantee.name == self.guarantee.name, f"{kind} loses what the rows are about"
                if is_log and kind == "tsv":
                    assert again.keys() == run.keys(), f"{kind} changes the keys"
                    continue
                differing = _differences(self._stored(again), rows)
                assert differing == [], f"{kind} changes the rows {differing}"
                own = {name: getattr(again.settings, name) for name in self._own() if name in schema_exports(run)}
                expected = {name: getattr(run.settings, name) for name in own}
                assert own == expected, f"{kind} changes the settings: {own} instead of {expected}"

    def test_settings_survive_the_file(self) -> None:
        guarantee = self.guarantee
        assert guarantee.name == guarantee.settings.kind, "the guarantee's `name` and the settings' `kind` must agree"
        settings = self._finished().run.settings
        assert isinstance(settings, guarantee.settings), "the run has settings of another class"
        assert guarantee.settings.from_dict(settings.to_dict()) == settings, "settings change when they are read"
        for name, value in self.settings.items():
            assert getattr(settings, name) == value, f"the setting {name} is {getattr(settings, name)}, not {value}"
        fields = {field.name for field in dataclasses.fields(guarantee.schema.row)}
        missing = {column.field for column in guarantee.schema.stored} - fields
        assert not missing, f"the row has no fields for the columns {sorted(missing)}"
        missing = {*guarantee.schema.keys, *guarantee.schema.truth, "name", "shape", "image_digest", SECONDS} - fields
        assert not missing, f"the row lacks {sorted(missing)}: derive it from InputRow"
        lost = fields - {column.field for column in guarantee.schema.columns}
        rows = self._finished().run.rows()  # what schema.finish derives is not lost
        lost = {name for name in lost if all(getattr(row, name) is None for row in rows)}
        assert not lost, f"the fields {sorted(lost)} of a row have no column, so they are lost"

    # ---- verification

    def test_an_honest_run_is_verified(self) -> None:
        for replay in (0, COUNT):
            found = self._verify(self._finished().run, replay)
            assert found.ok, f"an honest run does not verify:\n{found}"
        assert sorted(found.replayed) == list(range(COUNT)), f"not all rows were replayed:\n{found}"

    def test_every_changed_value_is_found(self) -> None:
        """Each stored column and each own setting in turn, with verification that replays all rows."""
        columns = [column for column in self.guarantee.schema.stored if column.field != SECONDS]
        found, missed = set[str](), list[str]()
        for column in columns:
            is_found = all(self._is_found(self._forge_row(column, value)) for value in self.other_values(column))
            (found.add if is_found else missed.append)(column.field)
        for name in self._own():
            is_found = self._is_found(self._forge_setting(name))
            (found.add if is_found else missed.append)(name)
        unknown = [name for name in missed if name not in self.unchecked]
        assert not unknown, (
            f"verification does not find changes of {unknown}. See check(), compare() and check_settings(), or list "
            "them in `unchecked`, with the reason"
        )
        stale = sorted(found & self.unchecked.keys())
        assert not stale, f"verification finds changes of {stale}, so they must not be listed in `unchecked`"
        removed = [column for column in columns if column.field in self.absent]
        stale = [column.field for column in removed if self._is_found(self._forge_row(column, None))]
        assert not stale, f"verification finds that {stale} were removed, so they must not be listed in `absent`"

    def _own(self) -> list[str]:
        names: list[str] = self.guarantee.settings.own_names()
        return names

    def _is_found(self, statement: tuple[str, tuple[Any, ...]]) -> bool:
        """Return whether verification finds what a statement of SQL does to a run, or the run cannot be read."""
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            RunFile(self._finished().folder, (self.guarantee,)).copy_to(Path(name))
            with contextlib.closing(sqlite3.connect(Path(name) / FILE)) as db, db:
                assert db.execute(*statement).rowcount > 0, f"nothing was changed by {statement}"
            try:
                return not self._verify(open_run(name, guarantee=self.guarantee), COUNT).ok
            except DamagedError:
                return True

    def _forge_row(self, column: Column, value: Any) -> tuple[str, tuple[Any, ...]]:
        schema = self.guarantee.schema
        key = schema.key(self._finished().run.rows()[0])
        where = " AND ".join(f"{name} = ?" for name in schema.keys)
        return f"UPDATE rows SET {column.field} = ? WHERE {where}", (value, *key)

    def _forge_setting(self, name: str) -> tuple[str, tuple[Any, ...]]:
        names = {field: key for key, field in self.guarantee.settings.texts.items()}
        other = other_setting(getattr(self._finished().run.settings, name))
        return "UPDATE settings SET value = ? WHERE key = ?", (json.dumps(other), names.get(name, name))

    def other_values(self, column: Column) -> list[Any]:
        """Return values as they are stored, other than that of the first row."""
        rows = self._finished().run.rows()
        if column.field in self.guarantee.schema.keys:  # one that no row has yet
            return [max(getattr(row, column.field) for row in rows) + 1]
        value = getattr(rows[0], column.field)
        others = [column.codec.store(other) for other in other_values(column, value)]
        is_removable = not column.required and value is not None and column.field not in self.absent
        return [*others, None] if is_removable else others

    # ---- what is shown

    def test_rows_promise_a_share(self) -> None:
        guarantee, rows = self.guarantee, self._finished().run.rows()
        tallies = [guarantee.tally(row) for row in rows]
        assert all(0 <= tally <= 1 for tally in tallies), f"tally() must be from 0 to 1, and is {tallies}"
        assert min(tallies) < max(tallies), f"choose inputs of which some are certified and some are not: {tallies}"
        failed = guarantee.failed_row(self._fail(rows[0]))
        assert guarantee.tally(failed) == 0, "an input that failed promises nothing, so its tally must be 0"
        assert guarantee.schema.key(failed) == guarantee.schema.key(rows[0]), "failed_row() changes the key"
        assert guarantee.schema.to_record(failed), "failed_row() cannot be exported"

    def test_the_summary_counts_failures_as_not_certified(self) -> None:
        guarantee, run = self.guarantee, self._finished().run
        whole = guarantee.summarise(run)
        rows = run.rows()
        inputs = len({row.idx for row in rows})
        assert whole.inputs == inputs, f"summarise() counts {whole.inputs} inputs, and the rows are of {inputs}"
        assert whole.claims, "summarise() claims nothing, though rows are certified"
        assert whole.metrics, "summarise() returns no number"
        for metric in whole.metrics:
            assert str(metric), "a metric has no text"
            if not metric.unit:
                assert 0 <= metric.value <= 1, f"{metric.name} is {metric.value}: give it a `unit`, or a share"
                low, high = metric.low, metric.high
                assert low is None or high is None or low <= metric.value <= high, f"{metric} is not in its interval"
        for place, row in enumerate(rows):
            listed = ListedRun(run, [*rows[:place], *rows[place + 1 :]], [self._fail(row)])
            found = guarantee.summarise(listed)
            assert found.inputs == whole.inputs, "summarise() leaves out inputs that failed"
            assert len(found.failures) == 1, "summarise() leaves out failures"
            first, before = found.metrics[0], whole.metrics[0]
            if not first.unit:
                assert first.value <= before.value + 1e-12, f"{first.name} rises if input {row.idx} fails"
        guarantee.summarise(ListedRun(run, [], []))  # of a run that has no rows yet

    def test_reports_render(self) -> None:
        run, guarantee = self._finished().run, self.guarantee
        report = make_report([run])
        assert [section.kind for section in report.sections] == [guarantee.name], "the section is of another kind"
        assert report.table().lines, "the table of the section is empty"
        with tempfile.TemporaryDirectory(prefix="pprs-") as name:
            for kind in ("html", "md", "json"):
                assert kind in REPORTS
                write_report([run, run], Path(name) / f"report.{kind}")
                assert len((Path(name) / f"report.{kind}").read_text(encoding="utf-8")) > 100, f"{kind} is empty"

    def test_progress_and_doctor_have_words(self) -> None:
        guarantee, run = self.guarantee, self._finished().run
        assert guarantee.describe_tally(2, 1.0), "describe_tally() returns nothing"
        assert guarantee.describe_run(2, 1.0), "describe_run() returns nothing"
        assert run.path in repr(run)
        if guarantee.examination is not None:
            assert str(import_place(guarantee.examination)(run)), "the examination says nothing"

    # ---- helpers

    def _run(self, out: Path, **more: Any) -> Run:
        chosen: dict[str, Any] = {"images": range(COUNT), "progress": False, "engine": "torch", "out": out}
        model, data = self._inputs()
        options = {**chosen, **self.options, **more}
        return run_dataset(self.guarantee, model, data, settings=self.settings, **options)

    def _inputs(self) -> tuple[str, str]:
        inputs: tuple[Any, tuple[str, str]] | None = type(self).__dict__.get("_written")
        if inputs is None:
            scratch = tempfile.TemporaryDirectory(prefix="pprs-")
            inputs = scratch, self.make_inputs(Path(scratch.name))
            type(self)._written = inputs  # type: ignore[attr-defined]
        return inputs[1]

    def _finished(self) -> _Finished:
        """Make the run that others are compared with; once per class, since that takes a while."""
        finished: _Finished | None = type(self).__dict__.get("_cached")
        if finished is None:
            scratch = tempfile.TemporaryDirectory(prefix="pprs-")
            out = Path(scratch.name) / "run"
            finished = _Finished(out, self._inputs(), self._run(out), scratch)
            type(self)._cached = finished  # type: ignore[attr-defined]
        return finished

    def _stored(self, run: Run, *, seconds: bool = False) -> dict[Key, tuple[Any, ...]]:
        """Return rows as they are stored, by key, without times unless they are wanted."""
        schema = self.guarantee.schema
        kept = [i for i, column in enumerate(schema.stored) if seconds or column.field != SECONDS]
        return {schema.key(row): tuple(schema.to_sql(row)[i] for i in kept) for row in run.iter_rows()}

    def _export(self, run: Run, path: Path) -> Run:
        kind = path.suffix.lstrip(".")
        export(run.checked_outcomes(), run.settings, kind, path, run.fair_order(), run.guarantee, run.failures())
        return open_run(path, guarantee=self.guarantee)

    def _verify(self, run: Run, replay: int) -> Verification:
        model, data = self._inputs()
        return verify_run(run, model=model, data=data, replay=replay, progress=False)

    def _fail(self, row: Any) -> Failure:
        schema = self.guarantee.schema
        more = {name: getattr(row, name) for name in (*schema.keys[1:], *schema.truth) if name != "label"}
        return Failure(row.idx, getattr(row, "label", None), "the file is damaged", row.name, more)

    @contextlib.contextmanager
    def _altered(self, *, fail: bool = False) -> Iterator[None]:
        """Change an input of the data, or let it fail."""
        load = self.guarantee.load

        def load_altered(*arguments: Any, **options: Any) -> Any:
            subject = load(*arguments, **options)
            return dataclasses.replace(subject, data=AlteredData(subject.data, fail=fail))  # type: ignore[arg-type]

        with mock.patch.object(type(self.guarantee), "load", lambda _, *a, **o: load_altered(*a, **o)):
            yield


def schema_exports(run: Run) -> set[str]:
    """Return the settings that every exported row repeats."""
    return {run.settings.texts.get(name, name) for name in run.settings.exported}


def _same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def _differences(rows: Mapping[Key, Any], expected: Mapping[Key, Any]) -> list[Key]:
    return [key for key, row in rows.items() if row != expected.get(key)]


__all__ = ["GuaranteeContract"]
