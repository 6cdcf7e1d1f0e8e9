"""A worker whose engine raises what MLX raises when a Mac's GPU gives up a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.faults import in_engine_step, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.worker.engines.test_gpu_failures import IGNORED, INTERACTIVITY, TIMEOUT, VICTIM, failure

# At some steps of the first worker that makes any: rows are in all states by then.
FAILS = """
self.steps = getattr(self, "steps", 0) + 1
if self.steps in {steps} and not os.path.exists({flag!r}):
    if self.steps == {steps}[-1]:
        open({flag!r}, "w").close()
    raise RuntimeError({message!r})
"""
QUESTION = "Tell me a story about a lighthouse, a ship and its keeper."


def _start(
    start_gateway: Callable[..., Gateway], folder: Path, what: str, steps: tuple[int, ...]
) -> Gateway:
    code = FAILS.format(steps=steps, flag=str(folder / "failed"), message=str(failure(what)))
    return start_gateway(environment=sitecustomize(folder / "site", in_engine_step(code)))


@pytest.mark.parametrize(
    "what",
    [TIMEOUT, *(pytest.param(what, marks=pytest.mark.slow) for what in (INTERACTIVITY, VICTIM))],
)
def test_one_that_passes_is_no_death(
    start_gateway: Callable[..., Gateway], tmp_path: Path, what: str
) -> None:
    gateway = _start(start_gateway, tmp_path, what, (1, 4, 5, 20))
    gateway.load()
    pid = gateway.worker_pid()
    answer = gateway.say(QUESTION, max_tokens=60, ignore_eos=True)
    assert (tmp_path / "failed").exists()
    assert answer == gateway.say(QUESTION, max_tokens=60, ignore_eos=True)
    assert gateway.worker_pid() == pid
    assert gateway.events("exit") == []
    assert gateway.model()["restarts"] == 0
    eventually(lambda: _given_up(gateway) == 4, START_S)


def _given_up(gateway: Gateway) -> int:
    logs = gateway.client.get("/admin/v1/models/demo/logs").text
    return logs.count("The GPU gave up a command")


@pytest.mark.slow
def test_one_that_never_heals_ends_its_process(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    gateway = _start(start_gateway, tmp_path, IGNORED, (20,))
    gateway.load()
    pid = gateway.worker_pid()
    answer = gateway.say(QUESTION, max_tokens=60, ignore_eos=True)
    assert (tmp_path / "failed").exists()
    assert gateway.worker_pid() != pid
    assert [each["code"] for each in gateway.events("exit")] == [1]
    # Nothing was lost.
    assert answer == gateway.say(QUESTION, max_tokens=60, ignore_eos=True)
