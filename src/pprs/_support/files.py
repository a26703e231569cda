"""Atomic writes, names of files, the cache folder, and the memory that files may take."""

from __future__ import annotations

import contextlib
import difflib
import errno
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from pprs.errors import PprsError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
MAX_LISTED = 10_000  # files among which a name is looked for that was probably meant


def cache_folder() -> Path:
    """Return the folder for files that can be recreated: $PPRS_CACHE, or `pprs` in the user's cache folder."""
    return Path(
        os.environ.get("PPRS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pprs"
    )


def usable_memory() -> int:
    """Return the bytes that the content of a file may take in memory: half of what this machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # unknown on this system
        return 2**33


@contextlib.contextmanager
def atomic_write(path: Path, parameter: str | None = "out") -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` in one step at the end.

    `parameter` is the argument that `path` came from, which errors name.
    """
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe cannot be replaced
        try:
            yield path
        except OSError as error:
            raise cannot_write(path, error, parameter) from error
        return
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        raise cannot_write(path, error, parameter) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise if a file cannot be written to this path, before hours of work depend on it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.part")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error
    if path.is_dir():
        raise PprsError(f"cannot write {path}: it is a folder. Give the name of a file.", parameter="out")


def cannot_write(path: Path, error: OSError, parameter: str | None = "out") -> PprsError:
    """Return an error that explains why a path cannot be written, with a remedy.

    `parameter` is the argument that `path` came from, or None.
    """
    other = "another path" if parameter is None else f"another `{parameter}`"
    remedy = {
        errno.ENOSPC: f"The disk is full: free some space, or give {other}.",
        errno.EACCES: f"You have no permission to write there: give {other}.",
        errno.EROFS: f"That disk is read-only: give {other}.",
        errno.EISDIR: "That is a folder: give the name of a file.",
        errno.ENAMETOOLONG: f"The name is too long: give {other}.",
        errno.ENOTDIR: f"A part of that path is a file, not a folder: give {other}.",
    }.get(error.errno or 0, f"Give {other}.")
    return PprsError(f"cannot write {path}: {error.strerror or error}. {remedy}", parameter=parameter)


def is_hub_name(text: str) -> bool:
    """Return whether a text that names no file here can name a repository of a hub: owner/name.

    Anything else is a path, for which no hub is asked: a single word, or a file in a folder that exists.
    """
    return HUB_NAME.fullmatch(text) is not None and not Path(text).parent.is_dir()


def suggest_files(text: str, others: Iterable[str] = ()) -> str:
    """Return a question with the name that was probably meant, of the files beside a missing one or of `others`.

    It is empty if no name is near, and begins with a space otherwise.
    """
    path, others = Path(text), list(others)
    try:
        beside = [file.name for file in itertools.islice(path.parent.iterdir(), MAX_LISTED) if file != path]
    except OSError:
        beside = []
    whole = [name for name in others if name.endswith(f":{text}")]
    near = whole or difflib.get_close_matches(path.name, [*beside, *others], n=1)
    name = path.with_name(near[0]) if near and near[0] in beside else "".join(near)
    return f' Did you mean "{name}"?' if near else ""
