"""Reading runs: settings and rows, wherever they are stored."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pprs._support.extras import extra
from pprs._support.shown import to_html
from pprs.errors import ConfigurationError, DamagedError, PprsError
from pprs.runs import remote
from pprs.runs.binding import Binding
from pprs.runs.columns import IDX
from pprs.runs.export import ERROR, to_arrow
from pprs.runs.exported import read_exported
from pprs.runs.folder import SUFFIXES
from pprs.runs.guarantee import Guarantee
from pprs.runs.row import ROWS, Failure, Row, from_record
from pprs.runs.store import FILE, RunFile
from pprs.runs.tables import Given

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Run(ABC):
    """A certification run: its settings, and one row per image.

    Attributes:
        path: Folder, file or url of the run.
        settings: The settings that the rows were computed with.
        images: Indices of the images that `certify_dataset` was called for, None for an opened run.
    """

    path: str
    guarantee: Guarantee[Any, Any]
    settings: Any
    images: Sequence[int] | None = None

    @abstractmethod
    def iter_rows(self) -> Iterator[Any]:
        """Iterate over the rows in the order of image indices, without holding all of them in memory."""

    def keys(self) -> list[tuple[int, ...]]:
        """The keys of the rows: the index of each input, and what else distinguishes rows."""
        return [self.guarantee.schema.key(row) for row in self.iter_rows()]

    @abstractmethod
    def failures(self) -> list[Failure]:
        """The images that could not be certified, with the reasons."""

    def rows(self) -> list[Any]:
        """The rows in the order of image indices. Failed images have none.

        Raises:
            PprsError: If they would take more than half of this machine's memory.
        """
        return list(self.iter_rows())

    @property
    def binding(self) -> Binding | None:
        """The identity of the model that the run was made with, if it is recorded."""
        return None

    def thumbnails(self) -> dict[int, bytes]:
        """Images stored for the report, as PNG, by index."""
        return {}

    def fair_order(self) -> list[int] | None:
        """The images of a run with a target error, in the random order in which they count; None for other runs."""
        return None

    def outcomes(self) -> list[Any]:
        """The rows of all images, including one for each failed image, which counts as not certified."""
        failed = map(self.guarantee.failed_row, self.failures())
        return sorted([*self.iter_rows(), *failed], key=self.guarantee.schema.key)

    def checked_outcomes(self) -> list[Any]:
        """The outcomes, if they follow from their counts and the settings.

        Raises:
            PprsError: If a bound, a radius or a prediction does not follow.
        """
        outcomes = self.outcomes()  # first, since it refuses a run that does not fit in memory
        self.guarantee.check_rows(self.iter_rows(), self.settings).refuse(self.path)
        return outcomes

    def to_arrow(self) -> pyarrow.Table:
        """The outcomes as an Arrow table, with one row per image and the columns of `pprs export`."""
        return to_arrow(self.checked_outcomes(), self.settings, self.fair_order(), self.guarantee, self.failures())

    def to_pandas(self) -> pandas.DataFrame:
        """The outcomes as a data frame, with one row per image and the columns of `pprs export`.

        A column that is called otherwise there than in a row, such as `predict`, has the row's name too, with the
        row's values: `prediction` is missing where the classifier abstains.
        """
        with extra():
            import pandas  # takes half a second

        outcomes = self.checked_outcomes()
        table = to_arrow(outcomes, self.settings, self.fair_order(), self.guarantee, self.failures()).to_pandas()
        for column in self.guarantee.schema.columns:
            if column.stored is not None:
                values = [getattr(outcome, column.field) for outcome in outcomes]
                table[column.field] = pandas.array(values, dtype="Int64") if column.arrow == "int64" else values
        return table

    def __len__(self) -> int:
        return len(self.keys())

    def __repr__(self) -> str:
        counts, method = self._describe()
        return f"<Run {self.path}: {counts}{f', {method}' if method else ''}>"

    def _repr_html_(self) -> str:
        counts, method = self._describe()
        return to_html("Run", {"path": self.path, "result": counts, "method": method or None})

    def _describe(self) -> tuple[str, str]:
        promised, rows, failed = 0.0, 0, len(self.failures())
        for row in self.iter_rows():
            promised, rows = promised + self.guarantee.tally(row), rows + 1
        counts = self.guarantee.describe_run(rows + failed, promised) + (f", {failed} failed" if failed else "")
        return counts, self.guarantee.describe_method(self.settings)


class StoredRun(Run):
    """A run in a folder. Rows that are written later become visible too.

    `keep` is any object that must live as long as the run, such as a temporary folder.
    """

    def __init__(
        self,
        folder: Path,
        path: str | None = None,
        images: Sequence[int] | None = None,
        keep: Any = None,
        guarantees: Given = (),
    ) -> None:
        self._file, self.path, self.images = RunFile(folder, guarantees), path or str(folder), images
        self._keep, self.guarantee = keep, self._file.guarantee
        self.folder, self.settings = folder, self._file.settings

    @property
    def binding(self) -> Binding | None:
        return self._file.binding

    def rows(self) -> list[Any]:
        self._file.check_size(self.path)
        return super().rows()

    def keys(self) -> list[tuple[int, ...]]:
        self._file.check_size(self.path)
        return self._file.keys()

    def outcomes(self) -> list[Any]:
        self._file.check_size(self.path)
        return super().outcomes()

    def iter_rows(self) -> Iterator[Any]:
        yield from self._file.iter_rows()  # which keeps this run, and its temporary folder, for as long

    def failures(self) -> list[Failure]:
        return self._file.failures()

    def thumbnails(self) -> dict[int, bytes]:
        return self._file.thumbnails()

    def fair_order(self) -> list[int] | None:
        return self._file.fair_order()


class ExportedRun(Run):
    """Rows written by `pprs export`, or a log of Cohen et al."""

    def __init__(self, path: Path, guarantees: Given = ()) -> None:
        self.path = str(path)
        exported = read_exported(path, guarantees)
        self.guarantee, self._records, self._order = exported.guarantee, exported.records, exported.order
        try:
            self.settings = self.guarantee.settings.from_dict(exported.settings)
        except PprsError as error:
            raise DamagedError(f"{path} cannot be read as exported rows: {error}") from error

    def _rows(self) -> Iterator[tuple[bool, Any]]:
        """Yield whether an input failed, and its row or, if its guarantee has no row for that, its record."""
        schema = self.guarantee.schema
        for number, record in enumerate(self._records, 1):
            if schema is ROWS:
                row = from_record(record)
                yield row.status == "failed", row
            elif record.get(ERROR):
                yield True, record
            else:
                yield False, schema.from_exported(record, self.settings, f"{self.path}, row {number}")

    def iter_rows(self) -> Iterator[Any]:
        return (row for failed, row in self._rows() if not failed)

    def failures(self) -> list[Failure]:
        failures = []
        for failed, row in self._rows():
            if failed and isinstance(row, Row):
                failures.append(Failure(row.idx, row.label, "failed in the exported run", row.name))
            elif failed:
                failures.append(self._read_failure(row))
        return failures

    def _read_failure(self, record: Mapping[str, Any]) -> Failure:
        schema = self.guarantee.schema
        stored = {column.field: record.get(column.name) for column in schema.stored}
        try:
            more = schema.read_truth(stored, self.settings) | {name: stored[name] for name in schema.keys[1:]}
        except ValueError as error:
            raise DamagedError(f"{self.path}: the failed image {record[IDX]} is damaged: {error}") from error
        return Failure(record[IDX], more.pop("label", None), record[ERROR], record.get("name"), more)

    def fair_order(self) -> list[int] | None:
        return self._order


def open_run(path: str | Path, *, guarantee: Guarantee[Any, Any] | None = None) -> Run:
    """Open a run for reading.

    Args:
        path: Folder of the run, its url (`s3://bucket/run`), or rows exported from it (tsv, csv, parquet, json).
        guarantee: What the rows promise, if it is a guarantee of your own.

    Returns:
        The run.

    Raises:
        ConfigurationError: If there is no run at `path`.
        PprsError: If exported rows cannot be read.
    """
    text, given = str(path), () if guarantee is None else (guarantee,)
    remote.check_text(path, "path")
    if remote.is_url(text):
        scratch = tempfile.TemporaryDirectory()
        folder = Path(scratch.name) / (text.rstrip("/").rpartition("/")[2] or "run")
        if not remote.fetch(text, FILE, folder / FILE):
            raise ConfigurationError(f"{text} is not a run: it has no {FILE}. Check the url.")
        return StoredRun(folder, text, keep=scratch, guarantees=given)
    local = Path(path)
    if local.is_file() or (local.suffix in SUFFIXES and not local.is_dir()):
        return ExportedRun(local, given)
    return StoredRun(local, guarantees=given)
