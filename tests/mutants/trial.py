"""Tries wrong versions of a module against its tests.

pytest collects the tests once, runs them once as the module is, and notes which lines of it each of
them comes by. A version is then tried in a forked process, in which its functions take the place of
those of the module, by the tests that come by the changed statement; the quickest come first.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.util
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, BinaryIO, Final, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.changes import Mutant

ROOT: Final = Path(__file__).parents[2]
# Of the time that the tests took as the module is, and were traced: whoever needs more never ends.
_TIMES: Final = 2
_MORE_S: Final = 2
# One that waits for something takes none of that. Other processes may take the cores meanwhile.
_WALL_TIMES: Final = 4
_WALL_MORE_S: Final = 10
# Of all tests together, for what is tried without knowing which of them it concerns.
_CPU_S: Final = 60
_OURS: Final = ("gateway", "worker", "protocol", "tests")


class _Run(NamedTuple):
    item: pytest.Item
    lines: frozenset[int]
    took_s: float
    wall_s: float


class Trial:
    """A plugin of pytest. `survived` are the versions with which all tests pass; it is None as long
    as the tests fail with the module as it is.
    """

    def __init__(self, path: Path, versions: list[Mutant], tests: list[str], jobs: int) -> None:
        self.survived: list[Mutant] | None = None
        self._path, self._tests = path, tests
        self._versions = versions
        self._jobs = jobs

    def run(self) -> None:
        """Collect the tests and try all versions."""
        _pytest(self._tests, plugins=[self])

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of pytest's own loop."""
        runs = None if session.testsfailed else self._as_it_is(session.items)
        if runs is None:
            return True
        functions = _functions(str(ROOT / self._path))
        passed = _each(
            self._jobs,
            [
                lambda item=version: self._passes(item, runs, functions)
                for version in self._versions
            ],
        )
        pairs = zip(self._versions, passed, strict=True)
        self.survived = [mutant for mutant, survives in pairs if survives]
        return True

    def _as_it_is(self, items: list[pytest.Item]) -> list[_Run] | None:
        """In a process of its own too, the quickest first: MLX can't be used before a fork."""
        with tempfile.TemporaryFile() as told:
            if not all(_each(1, [lambda: self._tell(items, told)])):
                return None
            told.seek(0)
            runs = [_Run(items[index], *rest) for index, *rest in pickle.load(told)]
        return sorted(runs, key=lambda run: run.took_s)

    def _tell(self, items: list[pytest.Item], told: BinaryIO) -> bool:
        runs = []
        for index, item in enumerate(items):
            began_s, wall_began_s = time.process_time(), time.monotonic()
            with _seen(str(ROOT / self._path)) as lines:
                failed = _fails(item)
            if failed:
                return False
            took_s, wall_s = time.process_time() - began_s, time.monotonic() - wall_began_s
            runs.append((index, frozenset(lines), took_s, wall_s))
        pickle.dump(runs, told)
        told.flush()
        return True

    def _passes(self, version: Mutant, runs: list[_Run], functions: list[FunctionType]) -> bool:
        """In a process of its own."""
        codes = dict(_codes(compile(version.tree, str(self._path), "exec")))
        if not version.in_function or not _fit(functions, codes):
            _limit(_CPU_S, runs)
            _import_anew(self._path, version.tree)
            return not _pytest(self._tests)
        concerned = [run for run in runs if not run.lines.isdisjoint(version.lines)]
        _limit(int(_TIMES * sum(run.took_s for run in concerned)) + _MORE_S, concerned)
        for function in functions:
            function.__code__ = codes[_key(function.__code__)]
        return not any(_fails(run.item) for run in concerned)


def _pytest(tests: list[str], plugins: list[object] | None = None) -> int:
    options = ["-x", "-q", "--noconftest", "-p", "no:cacheprovider", "--tb=no", "--capture=no"]
    options += ["-c", os.devnull, "--rootdir", str(ROOT)]
    options += ["-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto"]
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        return int(pytest.main([*options, *tests], plugins=plugins))


def _fails(item: pytest.Item) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False))


@contextlib.contextmanager
def _seen(file: str) -> Iterator[set[int]]:
    """Which lines of a file are come by, also in threads that start meanwhile."""
    lines: set[int] = set()

    def line(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        lines.add(frame.f_lineno)
        return line

    def call(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        return line if frame.f_code.co_filename == file else None

    threading.settrace(call)
    sys.settrace(call)
    try:
        yield lines
    finally:
        sys.settrace(None)
        threading.settrace(None)


def _each(jobs: int, tasks: list[Callable[[], bool]]) -> list[bool]:
    """Which of them is true, each in a process of its own."""
    results = [False] * len(tasks)
    running: dict[int, int] = {}
    for number, task in enumerate(tasks):
        running[_fork(task)] = number
        if len(running) >= jobs:
            _reap(running, results)
    while running:
        _reap(running, results)
    return results


def _fork(task: Callable[[], bool]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        status = int(not task())
    finally:
        os._exit(status)


def _reap(running: dict[int, int], results: list[bool]) -> None:
    pid, status = os.wait()
    results[running.pop(pid)] = status == 0


def _limit(cpu_s: int, runs: list[_Run]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    signal.alarm(int(_WALL_TIMES * sum(run.wall_s for run in runs)) + _WALL_MORE_S)


def _functions(file: str) -> list[FunctionType]:
    """All functions of a file."""
    every = [
        function_type
        for function_type in gc.get_objects()
        if isinstance(function_type, FunctionType)
    ]
    return [function_type for function_type in every if function_type.__code__.co_filename == file]


def _fit(functions: list[FunctionType], codes: dict[tuple[str, int], CodeType]) -> bool:
    return all(
        function.__code__.co_freevars == codes[_key(function.__code__)].co_freevars
        for function in functions
    )


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    yield _key(code), code
    for co_const in code.co_consts:
        if isinstance(co_const, CodeType):
            yield from _codes(co_const)


def _import_anew(path: Path, tree: ast.Module) -> None:
    """What a module does once needs all that use it to be loaded again."""
    for name in list(sys.modules):
        if name.partition(".")[0] in _OURS:
            del sys.modules[name]
    name = ".".join(path.with_suffix("").parts)
    package, _, attribute = name.rpartition(".")
    parent = importlib.import_module(package)
    if name in sys.modules:
        raise RuntimeError(f"{name} is loaded already, so others have it as it was")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)
    setattr(parent, attribute, module)
