"""A worker whose engine raises what MLX raises when a Mac's GPU gives up a command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.config.settings import Flags
from gateway.doctor.gateway import look_at_deaths
from gateway.doctor.installation import Installation
from tests.cli.terminal import bulkhead
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
def test_passing_gpu_failure_is_no_death(
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
def test_lasting_gpu_failure_ends_its_process(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    gateway = _start(start_gateway, tmp_path, IGNORED, (20,))
    gateway.load()
    pid = gateway.worker_pid()
    answer = gateway.say(QUESTION, max_tokens=60, ignore_eos=True)
    assert (tmp_path / "failed").exists()
    assert gateway.worker_pid() != pid
    assert [event["code"] for event in gateway.events("exit")] == [1]
    # Nothing was lost.
    assert answer == gateway.say(QUESTION, max_tokens=60, ignore_eos=True)


def test_three_that_end_workers_are_told(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    flag = tmp_path / "fails"
    fails = f"""
    if os.path.exists({str(flag)!r}):
        os.remove({str(flag)!r})
        raise RuntimeError({str(failure(IGNORED))!r})
    """
    gateway = start_gateway(environment=sitecustomize(tmp_path / "site", in_engine_step(fails)))
    gateway.load()
    answers = []
    for _ in range(3):
        assert gateway.model()["repeated_deaths"] == []
        flag.touch()
        answers.append(gateway.say(QUESTION, max_tokens=5, ignore_eos=True))
        assert not flag.exists()
    assert len(set(answers)) == 1
    (death,) = gateway.model()["repeated_deaths"]
    assert death["deaths"] == 3
    assert "kIOGPUCommandBufferCallbackErrorSubmissionsIgnored" in death["error"]
    (told,) = gateway.events("caution")
    assert (told["model"], told["error"]) == ("demo", death["error"])
    shown = bulkhead("status", url=gateway.url).stdout.replace("\n", " ")
    assert "Careful: demo: 3 of its workers have died of one error: [METAL]" in shown
    doctor = Installation(Flags(state_dir=gateway.state_dir), {})
    (finding,) = look_at_deaths(doctor)
    assert (finding.subject, finding.remedy) == ("demo", death["remedy"])
    assert death["error"].rstrip(".") in finding.evidence
