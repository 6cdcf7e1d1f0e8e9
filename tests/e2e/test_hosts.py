"""A model of which one rank is on another host: the same text, one life, and memory by the figures
of either host. The other hosts are agents on loopback.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.memory.fitting import Learned, whole
from gateway.memory.weights import LoadOptions
from tests.cli.terminal import bulkhead
from tests.support.agent import Agent, model_table
from tests.support.gateway import START_S, Gateway, chat_body, eventually, gone
from tests.support.shapes import DEMO, sparse

pytestmark = pytest.mark.slow

PROMPT = "Tell me a story about a small model."
TOKENS = 32
SETTINGS = "[workers]\nrestart_limit = 1000\nheartbeat_timeout_s = 5\n"


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    assert agent.stop() == 0


@pytest.fixture(scope="module")
def gateway(agent: Agent) -> Iterator[Gateway]:
    config = SETTINGS + agent.table() + model_table("split", "demo", "local", "studio2")
    gateway = Gateway(config=config)
    yield gateway
    # The last test kills it.
    assert gateway.stop() in (0, -signal.SIGKILL), gateway.log


def expect_small_processes(state_dir: Path) -> None:
    """As if a worker without a model took next to nothing."""
    Learned(state_dir / "learned.json").put_process(1_000_000)


def agent_free_bytes(gateway: Gateway) -> int:
    (free_bytes,) = eventually(
        lambda: [each["free_bytes"] for each in gateway.status()["hosts"] if each["ranks"]], START_S
    )
    return int(free_bytes)


def processes(gateway: Gateway, agent: Agent) -> list[int]:
    """Of the model's ranks, as soon as both are there."""
    (there,) = eventually(agent.children, START_S)
    return [gateway.worker_pid("split"), there]


def say(gateway: Gateway, model_id: str = "split", tokens: int = 4) -> str:
    return gateway.say(PROMPT, model_id, temperature=0, max_tokens=tokens)


def test_the_text_is_that_of_one_process(agent, gateway):
    assert say(gateway, tokens=24) == say(gateway, "demo", 24)
    assert len(agent.children()) == 1
    (host,) = eventually(
        lambda: [each for each in gateway.status()["hosts"] if each["ranks"]], START_S
    )
    assert (host["name"], host["reachable"], host["reason"]) == ("studio2", True, None)
    assert host["held_bytes"] > 0
    assert host["free_bytes"] < host["budget_bytes"] == 8_000_000_000
    assert "HTTP Request" not in gateway.log, "what the two tell each other is no news"


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_takes_the_other_along(victim, agent, gateway):
    gateway.load("split")
    before = processes(gateway, agent)
    os.kill(before[victim], signal.SIGKILL)
    eventually(lambda: all(map(gone, before)))
    assert say(gateway)
    host = "studio2" if victim else "this machine"
    reason = f"rank {victim} on {host} was lost (signal SIGKILL)"
    assert gateway.model("split")["last_exit"]["reason"] == reason


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_that_ends_is_named(number, agent, gateway):
    gateway.load("split")
    before = processes(gateway, agent)
    agent.process.send_signal(number)
    agent.process.wait(120)
    eventually(lambda: all(map(gone, before)))
    agent.start()
    eventually(lambda: gateway.chat(PROMPT, "split", max_tokens=4).is_success, START_S)
    reason = gateway.model("split")["last_exit"]["reason"]
    assert reason.startswith("rank 1 on studio2 was lost (")
    shown = " ".join(bulkhead("status", url=gateway.url).stdout.split())
    assert "split: the last worker ended " in shown
    assert "rank 1 on studio2 was lost (" in shown


def test_an_answer_waits_for_a_host_out_of_reach(agent, gateway):
    gateway.load("split")
    (_, there) = processes(gateway, agent)
    body = chat_body(PROMPT, "split", max_tokens=400, ignore_eos=True, stream=True)
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        for each in (there, agent.process.pid):
            os.kill(each, signal.SIGSTOP)
        try:
            # A host that is silent is waited for, and then another worker starts.
            reason = "waits for a host"
            eventually(lambda: reason in (gateway.model("split")["reason"] or ""), START_S)
        finally:
            for each in (agent.process.pid, there):
                os.kill(each, signal.SIGCONT)
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert not any('"error"' in each for each in rest)


def test_an_unload_leaves_nothing_there(agent, gateway):
    gateway.load("split")
    gateway.order("unload", "split").raise_for_status()
    eventually(lambda: not agent.children(), START_S)
    # Nor is anything promised.
    eventually(lambda: gateway.status()["hosts"][0]["free_bytes"] == 8_000_000_000)


def test_a_model_that_fits_no_budget_but_two(tmp_path):
    folder = sparse(tmp_path / "sparse", 64)
    alone, part = (
        whole(folder, 4096, 4096, None, Learned(tmp_path / "learned.json"), options)[1].floor_bytes
        for options in (LoadOptions(), LoadOptions(ranks=2))
    )
    assert part < alone
    budget = (part + alone) // 2
    small, large = Agent(str(part - 50_000_000)), Agent(str(budget))
    config = (
        SETTINGS
        + small.table("small")
        + large.table("large")
        + model_table("alone", folder)
        + model_table("poor", folder, "local", "small")
        + model_table("rich", folder, "local", "large")
    )
    gateway = Gateway("--memory-budget", str(budget), config=config, models=())
    try:
        answer = gateway.chat(PROMPT, "alone", max_tokens=4)
        assert answer.status_code == 507
        answer = gateway.chat(PROMPT, "poor", max_tokens=4)
        assert answer.status_code == 507
        message = answer.json()["error"]["message"]
        assert "on small it needs" in message
        assert "there is free" in message
        assert not small.children()
        assert gateway.chat(PROMPT, "rich", max_tokens=4).raise_for_status()
        assert len(large.children()) == 1
    finally:
        assert gateway.stop() == 0
        assert small.stop() == 0
        assert large.stop() == 0


def test_a_process_larger_than_was_estimated_leaves_room_for_the_sequence(tmp_path):
    """At the first load on a new state folder, where nothing was measured."""
    far = shutil.copytree(DEMO, tmp_path / "far")
    agent = Agent()
    config = SETTINGS + agent.table() + model_table("far", far, "local", "studio2")
    gateway = Gateway(config=config, models=(), prepare=expect_small_processes)
    try:
        gateway.load("far")
        before_bytes = agent_free_bytes(gateway)
        answer = gateway.chat(
            PROMPT, "far", temperature=0, max_tokens=TOKENS, ignore_eos=True
        ).raise_for_status()
        assert answer.json()["usage"]["completion_tokens"] == TOKENS
        assert eventually(lambda: agent_free_bytes(gateway) < before_bytes)
        assert gateway.model("far")["last_exit"] is None
    finally:
        assert gateway.stop() == 0
        assert agent.stop() == 0


def test_a_gateway_that_is_killed_leaves_nothing_anywhere(agent, gateway):
    """The last one."""
    gateway.load("split")
    left = processes(gateway, agent)
    gateway.process.send_signal(signal.SIGKILL)
    eventually(lambda: all(map(gone, left)))
