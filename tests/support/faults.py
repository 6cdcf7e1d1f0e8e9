"""Faults for workers, injected from outside: a sitecustomize on the interpreter's path, or an
interpreter of our own. The product has no switches for them."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def sitecustomize(folder: Path, code: str) -> dict[str, str]:
    """An environment in which every Python process runs `code` first.

    `in_worker()` is there for the code, so that it can spare the gateway.
    """
    preamble = """
    import sys
    def in_worker():
        return any(each.endswith("worker/__main__.py") for each in sys.orig_argv)
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = textwrap.dedent(preamble) + textwrap.dedent(code)
    (folder / "sitecustomize.py").write_text(text, "utf-8")
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *([inherited] if inherited else [])])}


def hangs(file: Path) -> Path:
    """While this file is there, a gateway with `hanging_files` waits for the other one."""
    return file.with_name(f"{file.name}.hangs")


def hanging_files() -> str:
    """Code for `sitecustomize`: gateways wait for files as for those of a mount that has died."""
    return """
    if any(each.endswith("bulkhead") for each in sys.orig_argv):
        import os, time
        opens = os.open
        def patient(path, *arguments, **options):
            while os.path.exists(f"{os.fsdecode(path)}.hangs"):
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
        "worker.engines.batched",
        f"""
        import os, sys, time
        original = module.BatchedEngine.step
        def step(self):
            running = [row.sequence for batch in self._batches for row in batch.rows]
            ids = {{each.request_id for each in [*self._waiting, *running]}}
            if not any(each.startswith(("greedy", "sampled", "kept")) for each in ids):
{textwrap.indent(textwrap.dedent(code), " " * 16)}
                pass
            return original(self)
        module.BatchedEngine.step = step
        """,
    )


def wrapped_python(path: Path, before: str = "") -> str:
    """This interpreter, to name as a model's `python`, after some lines of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\n{before}\nexec {sys.executable} "$@"\n', "utf-8")
    path.chmod(0o755)
    return str(path)


def interpreter(folder: Path, code: str) -> str:
    """An executable to name as a model's `python`: it gets a worker's arguments and runs `code`.

    `connect()` gives the code a PAIR socket to the gateway. `wait()` says nothing more, as one that
    hangs; `serve(socket)` does, as one that is idle, until it is told to stop.
    """
    preamble = f"""
    #!{sys.executable}
    import os, sys, time
    sys.path.insert(0, {str(_ROOT)!r})
    import zmq
    from protocol.channel import KEY_BYTES, connect_worker_side
    from protocol.codec import decode_from_gateway, encode
    from protocol.answers import *
    from protocol.life import *
    from protocol.memory import *
    from protocol.messages import *
    from protocol.parts import *
    from protocol.requests import *
    arguments = dict(zip(sys.argv, sys.argv[1:]))
    def connect():
        key = sys.stdin.buffer.read(KEY_BYTES)
        return connect_worker_side(zmq.Context(), arguments["--endpoint"], key)
    def wait():
        time.sleep(120)
    def serve(socket):
        while True:
            if not socket.poll(500):
                socket.send(encode(heartbeat()))
            elif isinstance(decode_from_gateway(socket.recv()), Stop):
                sys.exit(0)
    def heartbeat(**fields):
        return Heartbeat(**dict(dict(
            step=1, step_age_s=0.0, active=0, waiting=0, memory=MlxMemory()), **fields))
    def hello(**fields):
        return Hello(**dict(dict(
            protocol_version=PROTOCOL_VERSION, pid=os.getpid(),
            incarnation=int(arguments["--incarnation"]), python_version="3", mlx_version="0",
            mlx_lm_version="0", device=Device(name="none", architecture="none")), **fields))
    def ready():
        return Ready(load_s=0.0, weight_bytes=0, context_tokens=100, batching=True,
                     fingerprint='0', memory=MlxMemory())
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
