"""A model of which one rank is on another host: the same text, one life, and memory by the figures
of either host. The other hosts are sshd on loopback.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gateway.memory.fitting import Learned, whole
from gateway.memory.weights import LoadOptions
from tests.cli.terminal import bulkhead
from tests.support.gateway import START_S, Gateway, chat_body, eventually, gone
from tests.support.shapes import DEMO, sparse
from tests.support.ssh_host import SshClient, SshMachine, model_table, needs_sshd

pytestmark = [pytest.mark.slow, needs_sshd]

PROMPT = "Tell me a story about a small model."
TOKENS = 32
SETTINGS = "[workers]\nrestart_limit = 1000\nheartbeat_timeout_s = 5\n"


@pytest.fixture(scope="module")
def client() -> Iterator[SshClient]:
    client = SshClient()
    yield client
    client.close()


@pytest.fixture(scope="module")
def machine(client: SshClient) -> Iterator[SshMachine]:
    machine = SshMachine(client)
    yield machine
    machine.stop()


@pytest.fixture(scope="module")
def gateway(client: SshClient, machine: SshMachine) -> Iterator[Gateway]:
    config = SETTINGS + machine.table() + model_table("split", "demo", "local", "studio2")
    gateway = Gateway(config=config, environment={"PATH": client.path})
    yield gateway
    # The last test kills it.
    assert gateway.stop() in (0, -signal.SIGKILL), gateway.log


def expect_small_processes(state_dir: Path) -> None:
    """As if a worker without a model took next to nothing."""
    Learned(state_dir / "learned.json").put_process(1_000_000)


def remote_free_bytes(gateway: Gateway) -> int:
    (free_bytes,) = eventually(
        lambda: [host["free_bytes"] for host in gateway.status()["hosts"] if host["ranks"]], START_S
    )
    return int(free_bytes)


def processes(gateway: Gateway, machine: SshMachine) -> list[int]:
    """Of the model's ranks, as soon as both are there."""
    (there,) = eventually(machine.ranks, START_S)
    return [gateway.worker_pid("split"), there]


def say(gateway: Gateway, model_id: str = "split", tokens: int = 4) -> str:
    return gateway.say(PROMPT, model_id, temperature=0, max_tokens=tokens)


def test_text_is_that_of_one_process(machine, gateway):
    assert say(gateway, tokens=24) == say(gateway, "demo", 24)
    assert len(machine.ranks()) == 1
    (host,) = eventually(
        lambda: [host for host in gateway.status()["hosts"] if host["ranks"]], START_S
    )
    assert (host["name"], host["reachable"], host["reason"]) == ("studio2", True, None)
    assert host["held_bytes"] > 0
    assert host["free_bytes"] < host["budget_bytes"] == 8_000_000_000
    assert "HTTP Request" not in gateway.log, "what the two tell each other is no news"


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_takes_the_other_along(victim, machine, gateway):
    gateway.load("split")
    before = processes(gateway, machine)
    os.kill(before[victim], signal.SIGKILL)
    eventually(lambda: all(map(gone, before)))
    assert say(gateway)
    host = "studio2" if victim else "this machine"
    reason = f"rank {victim} on {host} was lost (signal SIGKILL)"
    assert gateway.model("split")["last_exit"]["reason"] == reason


@pytest.mark.parametrize("victim", ["ssh", "sshd", "remote"])
def test_connection_that_ends_is_named(victim, machine, gateway):
    gateway.load("split")
    before = processes(gateway, machine)
    if victim == "ssh":
        for process in psutil.Process(gateway.pid).children():
            if process.name() == "ssh":
                process.kill()
    elif victim == "sshd":
        machine.kill_sessions()
    else:
        os.kill(psutil.Process(before[1]).ppid(), signal.SIGKILL)
    eventually(lambda: all(map(gone, before)))
    eventually(lambda: gateway.chat(PROMPT, "split", max_tokens=4).is_success, START_S)
    reason = gateway.model("split")["last_exit"]["reason"]
    assert reason.startswith("rank 1 on studio2 was lost (ssh to studio2 ended with ")
    shown = " ".join(bulkhead("status", url=gateway.url).stdout.split())
    assert "split: the last worker ended " in shown
    assert "rank 1 on studio2 was lost (" in shown


def test_answer_waits_for_a_host_out_of_reach(machine, gateway):
    gateway.load("split")
    (_, there) = processes(gateway, machine)
    body = chat_body(PROMPT, "split", max_tokens=400, ignore_eos=True, stream=True)
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        link_ends = machine.remotes()
        machine.process.send_signal(signal.SIGSTOP)
        for pid in (there, *link_ends):
            os.kill(pid, signal.SIGSTOP)
        try:
            # A host that is silent is waited for, and then another worker starts.
            reason = "waits for a host"
            eventually(lambda: reason in (gateway.model("split")["reason"] or ""), START_S)
        finally:
            for pid in (machine.process.pid, *link_ends, there):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        rest = list(lines)
    assert "data: [DONE]" in rest
    assert not any('"error"' in item for item in rest)


def test_unload_leaves_nothing_there(machine, gateway):
    gateway.load("split")
    gateway.order("unload", "split").raise_for_status()
    eventually(lambda: not machine.ranks(), START_S)
    # Nor is anything reserved.
    eventually(lambda: gateway.status()["hosts"][0]["free_bytes"] == 8_000_000_000)


def test_model_that_fits_no_budget_fits_two(client, tmp_path):
    folder = sparse(tmp_path / "sparse", 64)
    alone, part = (
        whole(folder, 4096, 4096, None, Learned(tmp_path / "learned.json"), options)[1].floor_bytes
        for options in (LoadOptions(), LoadOptions(ranks=2))
    )
    assert part < alone
    budget = (part + alone) // 2
    small, large = SshMachine(client, "small"), SshMachine(client, "large")
    config = (
        SETTINGS
        + small.table(budget=str(part - 50_000_000))
        + large.table(budget=str(budget))
        + model_table("alone", folder)
        + model_table("poor", folder, "local", "small")
        + model_table("rich", folder, "local", "large")
    )
    gateway = Gateway(
        *("--memory-budget", str(budget)),
        config=config,
        models=(),
        environment={"PATH": client.path},
    )
    try:
        answer = gateway.chat(PROMPT, "alone", max_tokens=4)
        assert answer.status_code == 507
        answer = gateway.chat(PROMPT, "poor", max_tokens=4)
        assert answer.status_code == 507
        message = answer.json()["error"]["message"]
        assert "on small it needs" in message
        assert "there is free" in message
        assert not small.ranks()
        assert gateway.chat(PROMPT, "rich", max_tokens=4).raise_for_status()
        assert len(large.ranks()) == 1
    finally:
        assert gateway.stop() == 0
        small.stop()
        large.stop()


def test_process_larger_than_estimated_leaves_room_for_the_sequence(client, machine, tmp_path):
    """At the first load on a new state folder, where nothing was measured."""
    far = shutil.copytree(DEMO, tmp_path / "far")
    config = SETTINGS + machine.table() + model_table("far", far, "local", "studio2")
    gateway = Gateway(
        config=config,
        models=(),
        prepare=expect_small_processes,
        environment={"PATH": client.path},
    )
    try:
        gateway.load("far")
        before_bytes = remote_free_bytes(gateway)
        answer = gateway.chat(
            PROMPT, "far", temperature=0, max_tokens=TOKENS, ignore_eos=True
        ).raise_for_status()
        assert answer.json()["usage"]["completion_tokens"] == TOKENS
        assert eventually(lambda: remote_free_bytes(gateway) < before_bytes)
        assert gateway.model("far")["last_exit"] is None
    finally:
        assert gateway.stop() == 0


def test_killed_gateway_leaves_nothing_anywhere(machine, gateway):
    """The last one."""
    gateway.load("split")
    left = processes(gateway, machine)
    gateway.process.send_signal(signal.SIGKILL)
    eventually(lambda: all(map(gone, left)) and not machine.remotes())
