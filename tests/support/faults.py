"""Faults for workers, injected from outside: a sitecustomize on the interpreter's path, or an
interpreter of our own. The product has no switches for them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import fake_worker

_ROOT = Path(__file__).resolve().parents[2]


def _check_names(code: str) -> None:
    """Python goes on without a `sitecustomize` that fails, so a name of ours that has moved would
    leave a fault out.
    """
    for name in re.findall(r"(?<![\w.])(?:gateway|worker|protocol)(?:\.\w+)+", code):
        holder, _, attribute = name.rpartition(".")
        if importlib.util.find_spec(holder) is None:
            raise LookupError(f"{holder} has moved")
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            found = hasattr(importlib.import_module(holder), attribute)
        if not found:
            raise LookupError(f"{name} has moved")


def sitecustomize(folder: Path, code: str) -> dict[str, str]:
    """An environment in which every Python process runs `code` first.

    `in_worker()` is there for the code, so that it can spare the gateway.
    """
    preamble = """
    import sys
    def in_worker():
        return any(each.endswith("worker/__main__.py") for each in sys.orig_argv)
    """
    _check_names(code)
    folder.mkdir(parents=True, exist_ok=True)
    text = textwrap.dedent(preamble) + textwrap.dedent(code)
    (folder / "sitecustomize.py").write_text(text, "utf-8")
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([inherited] if inherited else [])])}


def hangs(file: Path, reader: str = "gateway") -> Path:
    """While this file is there, a reader with `hanging_files` waits for the other one."""
    return file.with_name(f"{file.name}.hangs-for-{reader}")


def hanging_files() -> str:
    """Code for `sitecustomize`: gateways and workers wait for files as for those of a mount that
    has died.
    """
    return """
    if in_worker() or any(each.endswith("bulkhead") for each in sys.orig_argv):
        import os, time
        opens = os.open
        reader = "worker" if in_worker() else "gateway"
        def patient(path, *arguments, **options):
            while os.path.exists(f"{os.fsdecode(path)}.hangs-for-{reader}"):
                time.sleep(0.02)
            return opens(path, *arguments, **options)
        os.open = patient
    """


def after_import(module: str, code: str) -> str:
    """Code for `sitecustomize` that runs in a worker right after it has imported a module, with
    the module as `module`.
    """
    return f"""
if in_worker():
    import importlib.abc, importlib.util

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != {module!r}:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
{textwrap.indent(textwrap.dedent(code), " " * 16)}
            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())
"""


# Code for `sitecustomize`: the imports of spares don't give way to others, which takes as long as
# these keep the machine busy.
EAGER_SPARES = """
if in_worker():
    import os
    os.setpriority = lambda *_: None
"""


def held_load(flag: Path) -> str:
    """Code for `sitecustomize`: no load goes on while the flag is there."""
    return after_import(
        "worker.load.loading",
        f"""
        import os, time
        original = module.load
        def load(*arguments, **options):
            while os.path.exists({str(flag)!r}):
                time.sleep(0.1)
            return original(*arguments, **options)
        module.load = load
        """,
    )


def in_engine_step(code: str) -> str:
    """Code for `sitecustomize` that runs before every step of a batching engine that serves: not
    while it warms up in the load.
    """
    return after_import(
        "worker.engines.batched_engine",
        f"""
        import os, sys, time
        original = module.BatchedEngine.step
        def step(self):
            running = [row.sequence for batch in self._batches for row in batch.rows]
            ids = {{each.request_id for each in [*self._waiting, *running]}}
            if not any(each.startswith(("greedy", "sampled", "cached")) for each in ids):
{textwrap.indent(textwrap.dedent(code), " " * 16)}
                pass
            return original(self)
        module.BatchedEngine.step = step
        """,
    )


def held_steps(flag: Path) -> str:
    """Code for `sitecustomize`: no engine that serves takes a step while the flag is there."""
    return in_engine_step(f"while os.path.exists({str(flag)!r}): time.sleep(0.02)")


def wrapped_python(path: Path, before: str = "") -> str:
    """This interpreter, to name as a model's `python`, after some lines of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} "$@"\n', "utf-8")
    path.chmod(0o755)
    return str(path)


def interpreter(folder: Path, code: str) -> str:
    """An executable to name as a model's `python`: it gets a worker's arguments and runs `code`,
    which has the names of `fake_worker`.
    """
    preamble = f"""
    #!{sys.executable}
    import sys
    sys.path.insert(0, {str(_ROOT)!r})
    from {fake_worker.__name__} import *
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python"
    path.write_text(textwrap.dedent(preamble).lstrip() + textwrap.dedent(code), "utf-8")
    path.chmod(0o755)
    return str(path)


@contextlib.contextmanager
def no_threads(after: int = 0) -> Iterator[None]:
    """In this process only so many threads can be started any more."""
    start, left = threading.Thread.start, after

    def fails(thread: threading.Thread) -> None:
        nonlocal left
        if left == 0:
            raise RuntimeError("can't start new thread")
        left -= 1
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        yield
