"""What the tables of a run hold: settings, columns and failures, each checked as it is read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from pprs.errors import DamagedError
from pprs.runs.binding import Binding
from pprs.runs.columns import Schema, quote_value
from pprs.runs.database import has_table
from pprs.runs.guarantee import Guarantee
from pprs.runs.provenance import CERTIFY, KIND
from pprs.runs.registry import find_guarantee
from pprs.runs.row import Failure

MAX_SETTINGS = 1000


NAME = "name"  # the column with the name of an input


Given = Sequence[Guarantee[Any, Any]]


def _read_values(db: sqlite3.Connection) -> dict[str, Any]:
    stored = {}
    for key, value in db.execute("SELECT key, value FROM settings LIMIT ?", (MAX_SETTINGS,)):
        try:
            stored[key] = json.loads(value)
        except (ValueError, TypeError, RecursionError):
            raise DamagedError(f"the setting {quote_value(key)} is not JSON. The run is damaged.") from None
    return stored


def read_guarantee(db: sqlite3.Connection, guarantees: Given) -> Guarantee[Any, Any]:
    found = db.execute("SELECT value FROM settings WHERE key = ?", (KIND,)).fetchone()
    if found is None:
        return find_guarantee(CERTIFY)
    try:
        name = json.loads(found[0])
    except (ValueError, TypeError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise DamagedError(f"the setting {KIND} is {quote_value(found[0])}, which is no name. The run is damaged.")
    return find_guarantee(name, guarantees)


def read_settings(db: sqlite3.Connection, guarantee: Guarantee[Any, Any]) -> Any:
    return guarantee.settings.from_dict(_read_values(db))


def read_binding(db: sqlite3.Connection) -> Binding | None:
    if not has_table(db, "binding"):
        return None
    return Binding.from_text(db.execute("SELECT value FROM binding").fetchone()[0])


def check_failure(schema: Schema[Any], values: dict[str, Any], settings: Any) -> Failure:
    keys, error, name = [values[key] for key in schema.keys], values["error"], values.get(NAME)
    try:
        if not all(type(key) is int and key >= 0 for key in keys):
            raise ValueError("its key is no index")
        if not isinstance(error, str) or not isinstance(name, str | None):
            raise ValueError("its error or its name is no text")
        truth = schema.read_truth(values, settings)
    except ValueError as problem:
        shown = quote_value(tuple(values.values()))
        raise DamagedError(f"the failed image {shown} is damaged: {problem}. The run is damaged.") from problem
    label = truth.pop("label", None)
    return Failure(keys[0], label, error, name, dict(zip(schema.keys[1:], keys[1:], strict=True)) | truth)


def existing_columns(db: sqlite3.Connection, table: str = "rows") -> set[str]:
    return {str(name) for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}


def column_expressions(db: sqlite3.Connection, schema: Schema[Any]) -> list[str]:
    """SQL for each stored column: its name or, in a run of an earlier version that lacks it, its default."""
    existing = existing_columns(db)
    return [c.field if c.field in existing else _default_value(c.sql or "") for c in schema.stored]


def is_partial(db: sqlite3.Connection, schema: Schema[Any]) -> str:
    """SQL that says whether a row is one that a later call continues."""
    if schema.partial is None:
        return "0"
    stopped = column_expressions(db, schema)[[c.field for c in schema.stored].index("stopped")]
    return f"{stopped} = '{schema.partial}'"


def _default_value(sql: str) -> str:
    """The default of a column, from its type in SQL.

    >>> _default_value("TEXT NOT NULL DEFAULT 'n'"), _default_value("REAL")
    ("'n'", 'NULL')
    """
    return sql.partition("DEFAULT ")[2] or "NULL"
