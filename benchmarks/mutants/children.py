"""Run something in a forked child, in which one module is changed.

The parent has imported the package and collected the tests, so a child is ready at once. It exchanges the code of the
functions that differ, and the constants of a module: what follows from them in the module, where they were imported,
and where they are attributes of classes or defaults of arguments. What an import computes with functions stays as it
was.
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
from typing import Any

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
        types = [value for value in objects if issubclass(type(value), type)]
        self._classes = [value for value in types if str(value.__module__).startswith("pprs")]
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
        for name, (before, after) in find_changed(sys.modules["pprs." + module.replace("/", ".")], tree).items():
            self._replace(name, before, after)
        for cache in self._caches:
            if str(getattr(cache, "__module__", "")).startswith("pprs"):
                cache.cache_clear()

    def _replace(self, name: str, old: Any, new: Any) -> None:
        """Put a new value in the place of that of a name, wherever it was bound when modules were imported."""
        for module in [module for key, module in sys.modules.items() if key.startswith("pprs")]:
            if vars(module).get(name) is old:
                setattr(module, name, new)
        if isinstance(old, str) or (isinstance(old, int) and abs(old) <= 256):
            return  # others may be the same object
        for owner in self._classes:
            for attribute in [key for key, value in vars(owner).items() if value is old]:
                setattr(owner, attribute, new)
        for function in self._functions:
            if any(value is old for value in function.__defaults__ or ()):
                function.__defaults__ = tuple(new if value is old else value for value in function.__defaults__ or ())
            for key, value in (function.__kwdefaults__ or {}).items():
                if value is old:
                    function.__kwdefaults__[key] = new


def find_changed(module: ModuleType, tree: ast.Module) -> dict[str, tuple[Any, Any]]:
    """Compute the constants of a module anew that are assigned otherwise, and those that follow from them.

    Returns:
        The old and the new value of each name that changed.
    """
    scope, changed = dict(vars(module)), dict[str, tuple[Any, Any]]()
    before = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    for old, new in zip(before.body, tree.body, strict=True):
        if not isinstance(new, ast.Assign):
            continue
        used = {node.id for node in ast.walk(new.value) if isinstance(node, ast.Name)}
        if ast.dump(new) == ast.dump(old) and not used & changed.keys():
            continue
        code = compile(ast.Module([new], []), module.__file__ or "", "exec")
        names = [node.id for node in ast.walk(new.targets[0]) if isinstance(node, ast.Name)]
        values = {name: scope[name] for name in names}
        exec(code, scope)
        changed |= {name: (values[name], scope[name]) for name in names if values[name] is not scope[name]}
    return changed


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
