"""Run something in a forked child, in which one module is changed.

The parent has imported the package and collected the tests, so a child is ready at once. It exchanges the code of the
functions that differ, and the constants of a module wherever they were imported. What an import computes with these
functions stays as it was.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from benchmarks.mutants.covering import PACKAGE

MEMORY = 24 << 30  # bytes of addresses: some mistakes would fill the machine
TOO_LONG = -1


def run_child(work: Callable[[], int], log: Path, cpu: float) -> int:
    """Call a function in a child process. Returns its exit code, or TOO_LONG if it took too many CPU seconds."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setpgid(0, 0)
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 5))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            code = work()
        finally:
            os._exit(code)
    end, status = time.monotonic() + 60 + 30 * cpu, None  # what waits for something takes no CPU time
    while status is None and time.monotonic() < end:
        done, value = os.waitpid(child, os.WNOHANG)
        status = value if done else None
        if status is None:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with what its tests have started
    if status is None:
        os.waitpid(child, 0)
        return TOO_LONG
    if os.WIFSIGNALED(status):
        return TOO_LONG if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else 71
    return os.WEXITSTATUS(status)


class Exchange:
    """Changes modules of the package in this process."""

    def __init__(self) -> None:
        objects = gc.get_objects()
        self._functions = [
            value for value in objects
            if type(value) is FunctionType and value.__code__.co_filename.startswith(str(PACKAGE))
        ]  # fmt: skip
        self._caches = [value for value in objects if type(value) is functools._lru_cache_wrapper]

    def install(self, module: str, tree: ast.Module) -> None:
        """Let the functions and constants of a module be those of a changed tree."""
        path = str(PACKAGE / f"{module}.py")
        codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compile(tree, path, "exec"))}
        for function in self._functions:
            old = function.__code__
            new = codes.get((old.co_qualname, old.co_firstlineno)) if old.co_filename == path else None
            if new is not None and new.co_freevars == old.co_freevars:
                function.__code__ = new
        _change_constants(sys.modules["pprs." + module.replace("/", ".")], tree)
        for cache in self._caches:
            if str(getattr(cache, "__module__", "")).startswith("pprs"):
                cache.cache_clear()


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _change_constants(module: ModuleType, tree: ast.Module) -> None:
    """Compute the numbers of a module anew, and change those that differ, wherever they were imported."""
    for statement in tree.body:
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
            continue
        name, old = statement.targets[0].id, vars(module).get(statement.targets[0].id)
        if not isinstance(old, int | float | str | tuple):
            continue
        new = eval(compile(ast.Expression(statement.value), "", "eval"), dict(vars(module)))
        if new != old:
            for other in [m for key, m in sys.modules.items() if key.startswith("pprs")]:
                if vars(other).get(name) == old:
                    setattr(other, name, new)
