"""A run as its readers see it: settings and rows, wherever they are kept."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pprs.errors import ConfigurationError
from pprs.runs import remote
from pprs.runs.export import read_exported, to_arrow
from pprs.runs.row import Failure, Row, from_record
from pprs.runs.settings import RunSettings
from pprs.runs.store import FILE, RunFile

if TYPE_CHECKING:
    import pandas
    import pyarrow


class Run(ABC):
    """The rows of a certification run, and the settings that they were made with."""

    path: str  # of its folder or file, or its url
    settings: RunSettings
    images: Sequence[int] | None = None  # of the call that made it, where it was made just now

    @abstractmethod
    def iter_rows(self) -> Iterator[Row]:
        """The certified images one by one, by index."""

    @abstractmethod
    def failures(self) -> list[Failure]:
        """The images that could not be certified."""

    def rows(self) -> list[Row]:
        """The certified images, by index."""
        return list(self.iter_rows())

    def thumbnails(self) -> dict[int, bytes]:
        """The pictures kept for the report, as PNG, by image."""
        return {}

    def outcomes(self) -> list[Row]:
        """The rows, and one for every image that failed, which counts as not certified."""
        return sorted([*self.iter_rows(), *(failure.row() for failure in self.failures())], key=lambda row: row.idx)

    def to_arrow(self) -> pyarrow.Table:
        """A table with a line an image, as `pprs export` writes it; an image that failed is not certified."""
        return to_arrow(self.outcomes(), self.settings)

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a data frame."""
        return self.to_arrow().to_pandas()

    def __len__(self) -> int:
        return sum(1 for _ in self.iter_rows())

    def __repr__(self) -> str:
        rows, failed = self.rows(), len(self.failures())
        certified = sum(row.prediction is not None for row in rows)
        what = f"{certified} of {len(rows) + failed} images certified" + (f", {failed} failed" if failed else "")
        made = (
            f"{self.settings.partition_text or 'unknown partition'} under {self.settings.noise_text or 'unknown noise'}"
        )
        return f"<Run {self.path}: {what}, {made}>"


class StoredRun(Run):
    """A run in a folder. What is written to it later is seen.

    `images` are those that the call which made it was about; `keep` is whatever must live as long as the run does.
    """

    def __init__(
        self, folder: Path, path: str | None = None, images: Sequence[int] | None = None, keep: Any = None
    ) -> None:
        self._file, self.path, self.images, self._keep = RunFile(folder), path or str(folder), images, keep
        self.folder, self.settings = folder, self._file.settings

    def iter_rows(self) -> Iterator[Row]:
        return self._file.iter_rows()

    def failures(self) -> list[Failure]:
        return self._file.failures()

    def thumbnails(self) -> dict[int, bytes]:
        return self._file.thumbnails()


class ExportedRun(Run):
    """Rows that `pprs export` wrote, or a log of Cohen et al."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._records, stored = read_exported(path)
        self.settings = RunSettings.from_dict(stored)

    def iter_rows(self) -> Iterator[Row]:
        return (row for row in map(from_record, self._records) if row.status != "failed")

    def failures(self) -> list[Failure]:
        failed = (row for row in map(from_record, self._records) if row.status == "failed")
        return [Failure(row.idx, row.label, "failed when its run was made") for row in failed]


def open_run(path: str | Path) -> Run:
    """A run to look at: its folder, its url (`s3://bucket/run`), or rows exported from it (tsv, csv, parquet, json)."""
    text = str(path)
    remote.check_text(path, "path")
    if remote.is_url(text):
        scratch = tempfile.TemporaryDirectory()
        folder = Path(scratch.name) / (text.rstrip("/").rpartition("/")[2] or "run")
        if not remote.fetch(text, FILE, folder / FILE):
            raise ConfigurationError(f"{text} is not a run: there is no {FILE}. Check the url.")
        return StoredRun(folder, text, keep=scratch)
    local = Path(path)
    if local.is_file() or (local.suffix in (".tsv", ".csv", ".parquet", ".json") and not local.is_dir()):
        return ExportedRun(local)
    return StoredRun(local)
