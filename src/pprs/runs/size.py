"""The memory that rows take, estimated before they are read: a run may come from somebody else.

A file of a few kilobytes can hold any number of rows, and what is read must not exhaust memory.
"""

from __future__ import annotations

from pprs._support.files import usable_memory
from pprs.errors import PprsError

# Measured with short texts, and rounded up: a row with what a report keeps of it, and an exported row, whose settings
# and unparsed values take memory too.
ROW_BYTES, EXPORTED_ROW_BYTES = 2_000, 8_000
TEXT_FACTOR = 8  # bytes of memory for a byte of text: the digits of a count, with a comma, become an object
MAP_FACTOR = 3  # bytes of memory for a byte of maps: a row keeps them, and what follows from them
JSON_FACTOR = 25  # the same for any JSON, such as nested empty lists
GB = 1e9


def check_size(source: str, content: str, needed: int) -> None:
    """Raise an error if content of a file or run takes too much memory.

    Args:
        source: The file or run.
        content: What it holds, such as "3 rows".
        needed: The bytes of memory that it takes.
    """
    allowed = usable_memory()
    if needed > allowed:
        raise PprsError(
            f"{source} holds {content}, which take about {needed / GB:,.1f} GB of memory, but at most half of this "
            f"machine's, {allowed / GB:,.1f} GB, is used for them. If you trust the file, read it on a machine with "
            "more memory."
        )


def check_rows_fit(source: str, rows: int, text: int, *, exported: bool = False, maps: int = 0) -> None:
    """Raise an error if this many rows, with so many bytes of text and of expanded maps, take too much memory."""
    bytes_per_row = EXPORTED_ROW_BYTES if exported else ROW_BYTES
    check_size(source, f"{rows:,} rows", bytes_per_row * rows + TEXT_FACTOR * text + MAP_FACTOR * maps)
