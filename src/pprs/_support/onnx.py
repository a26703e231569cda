"""Sessions of ONNX Runtime, for classifiers and denoisers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pprs._support.external_data import external_files
from pprs._support.extras import extra
from pprs.errors import PprsError


def require_runtime() -> Any:
    """Import ONNX Runtime, or raise an error that says how to install it."""
    with extra():
        import onnxruntime
    return onnxruntime


def open_session(file: str | bytes) -> Any:
    """Open a network in ONNX Runtime, given the path of its file or its content.

    The session uses a single thread, which does not spin, since batches run in parallel on the thread pool.
    """
    runtime = require_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own types, all of them about the file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PprsError(f"the file cannot be read as an ONNX network ({reason}). Check that it is complete.") from error


def digest_external_data(path: Path) -> str | None:
    """Return a digest of the files that hold tensors of the network, or None if the network cannot be searched."""
    sha = hashlib.sha256()
    try:
        names = external_files(path.read_bytes())
    except ValueError:
        return None  # most likely not a network, and ONNX Runtime will say so
    for name in names:
        file = path.parent / name
        if not file.is_file():
            raise PprsError(f"its tensors are in {file}, and there is no such file. Copy it with the network.")
        sha.update(name.encode())
        update_digest(sha, file)
    return sha.hexdigest()[:16] if names else "none"


def update_digest(sha: hashlib._Hash, path: Path) -> None:
    """Add the content of a file to a digest."""
    with path.open("rb") as file:
        while block := file.read(2**24):
            sha.update(block)
