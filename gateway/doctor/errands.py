"""Short-lived processes in a worker's environment: the doctor itself never imports MLX."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Literal

import msgspec
from msgspec import Struct

from gateway.workers.process import WORKER, worker_environment


class Outcome(Struct, frozen=True):
    """The lines of JSON that came, and why no more did; None if the process ended well."""

    lines: tuple[bytes, ...]
    failure: str | None


def run_errand(
    name: Literal["examine", "measure"], asked: Struct, python: str | None, within_s: float
) -> Outcome:
    """Blocks for seconds: an import of mlx-lm takes some. What has come by the deadline stays."""
    try:
        process = subprocess.Popen(
            [python or sys.executable, "-P", str(WORKER), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=worker_environment(),
            close_fds=False,
        )
    except OSError as error:
        return Outcome((), f"{python or sys.executable} can't be run: {error.strerror}")
    with process:
        try:
            stdout, stderr = process.communicate(msgspec.json.encode(asked), within_s)
            failure = None if process.returncode == 0 else _why(process.returncode, stderr)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, _ = process.communicate()
            failure = f"it took longer than {within_s:g} s"
        except BaseException:
            # Ctrl-C, for one.
            process.kill()
            raise
    return Outcome(tuple(stdout.splitlines()), failure)


def _why(code: int, stderr: bytes) -> str:
    if code < 0:
        return f"the process died by {signal.Signals(-code).name}"
    lines = [each.strip() for each in stderr.decode("utf-8", "replace").splitlines()]
    last = next((each for each in reversed(lines) if each), f"exit code {code}")
    return last.rstrip(".")
