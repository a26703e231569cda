"""Runs whose folder is an address: `s3://bucket/run`, `gs://...`, `file:///mnt/shared/run`, whatever fsspec knows.

SQLite wants a disk of its own. So a run is written on the driver's machine, and what is finished is copied to the
address now and then, and when the command ends; a run that is there already is fetched first, and gone on with.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pprs.errors import PprsError
from pprs.files import cache_folder


def is_url(text: str) -> bool:
    """Whether it is an address rather than a name on this disk.

    >>> is_url("s3://bucket/run"), is_url("runs/slic"), is_url("C:/runs")
    (True, False, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+://.", text) is not None


def working_folder(url: str) -> Path:
    """Where a run with this address is written on this machine."""
    return cache_folder() / "runs" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:24]


def fetch(url: str, name: str, to: Path) -> bool:
    """Copy a file of that folder here; False if it is not there."""
    with _told(url, "read"):
        system, root = _open(url)
        if not system.exists(f"{root}/{name}"):
            return False
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(f".{to.name}.part")
        system.get_file(f"{root}/{name}", str(part))
        part.replace(to)
        return True


def check_writable(url: str) -> None:
    """That a file can be written there: told before hours of work, not after."""
    with _told(url, "written"):
        system, root = _open(url)
        system.makedirs(root, exist_ok=True)
        trial = f"{root}/.{secrets.token_hex(4)}.part"
        system.pipe_file(trial, b"pprs")
        system.rm_file(trial)


def send(url: str, file: Path) -> None:
    """Copy a file into that folder, whole or not at all."""
    with _told(url, "written"):
        system, root = _open(url)
        system.makedirs(root, exist_ok=True)
        part = f"{root}/.{file.name}.{secrets.token_hex(4)}.part"  # nobody else's
        system.put_file(str(file), part)
        system.mv(part, f"{root}/{file.name}")


@contextlib.contextmanager
def local_copies(names: Sequence[str], file: str) -> Iterator[list[Path]]:
    """Folders on this disk: those named, and copies of those that are addresses."""
    with tempfile.TemporaryDirectory() as scratch:
        found = []
        for i, name in enumerate(names):
            if not is_url(name):
                found.append(Path(name))
                continue
            folder = Path(scratch) / str(i) / (name.rstrip("/").rpartition("/")[2] or "run")
            if not fetch(name, file, folder / file):
                raise PprsError(f"{name} is not a run: there is no {file}. A run is what `pprs certify --out` wrote.")
            found.append(folder)
        yield found


def _open(url: str) -> tuple[Any, str]:
    import fsspec

    system, root = fsspec.core.url_to_fs(url)
    return system, str(root).rstrip("/")


@contextlib.contextmanager
def _told(url: str, done: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise PprsError(f"{url} needs another package: {error}") from error
    except Exception as error:  # every store has errors of its own
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise PprsError(
            f"{url} cannot be {done} ({type(error).__name__}: {reason}). Check the address and your access."
        ) from error
