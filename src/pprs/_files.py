"""Files that are either whole or not there, and where those go that can be made again."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from pprs.errors import PprsError


def cache_folder() -> Path:
    """Where things are kept that can be made again."""
    return Path(
        os.environ.get("PPRS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pprs"
    )


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A path to write to; what stands there at the end takes the place of `path` in one step."""
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe is written to, not replaced
        try:
            yield path
        except OSError as error:
            raise cannot_write(path, error) from error
        return
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Tell now, not after hours of work, if a file cannot be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.part")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error
    if path.is_dir():
        raise PprsError(f"cannot write {path}: it is a folder. Give the name of a file.", parameter="out")


def cannot_write(path: Path, error: OSError) -> PprsError:
    remedy = {
        errno.ENOSPC: "The disk is full: free some space, or give another `out`.",
        errno.EACCES: "You may not write there: give another `out`.",
        errno.EROFS: "That disk is read-only: give another `out`.",
        errno.EISDIR: "That is a folder: give the name of a file.",
        errno.ENAMETOOLONG: "The name is too long: give another `out`.",
        errno.ENOTDIR: "A part of that path is a file, not a folder: give another `out`.",
    }.get(error.errno or 0, "Give another `out`.")
    return PprsError(f"cannot write {path}: {error.strerror or error}. {remedy}", parameter="out")
