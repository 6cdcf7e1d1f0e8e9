"""Ranks on other hosts, while links, ssh, ranks and gateways are lost: nothing is left anywhere,
and what comes back serves again.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.support.gateway import START_S, Gateway, eventually, gone
from tests.support.ssh_host import Link, SshClient, SshMachine, model_table, needs_sshd

pytestmark = [pytest.mark.chaos, needs_sshd]

PROMPT = "Tell me a story about a small model."
SETTINGS = "[workers]\nrestart_limit = 1000\nheartbeat_timeout_s = 5\n"
BRIDGE = "bh-chaos"


@pytest.fixture
def client() -> Iterator[SshClient]:
    client = SshClient()
    yield client
    client.close()


def start_gateway(client: SshClient, *machines: SshMachine) -> Gateway:
    tables = (m.table() + model_table(f"on-{m.name}", "demo", "local", m.name) for m in machines)
    return Gateway(config=SETTINGS + "".join(tables), environment={"PATH": client.path})


def say(gateway: Gateway, model_id: str) -> str | None:
    """None if it can't be had now."""
    answer = gateway.chat(PROMPT, model_id, temperature=0, max_tokens=12)
    return answer.json()["choices"][0]["message"]["content"] if answer.is_success else None


def processes(gateway: Gateway, model_id: str, machine: SshMachine) -> list[int]:
    """Of a model's ranks, as soon as both are there."""
    (there,) = eventually(machine.ranks, START_S)
    return [gateway.worker_pid(model_id), there]


def gone_within(pids: list[int]) -> float:
    began = time.monotonic()
    eventually(lambda: all(map(gone, pids)))
    return round(time.monotonic() - began, 1)


def test_link_that_is_cut_and_mended_serves_again(client: SshClient, tell: Callable[..., None]):
    machine = SshMachine(client, "one")
    link = Link(machine.port)
    machine.through(link)
    gateway = start_gateway(client, machine)
    try:
        text = say(gateway, "on-one")
        assert text
        ranks = processes(gateway, "on-one", machine)
        link.cut()
        tell(processes_gone_after_s=gone_within(ranks))
        brief = {"X-Deadline-S": "5"}
        assert not gateway.chat(PROMPT, "on-one", headers=brief, max_tokens=12).is_success
        link.mend()
        assert eventually(lambda: say(gateway, "on-one"), START_S) == text
    finally:
        link.close()
        assert gateway.stop() == 0
        machine.stop()


@pytest.mark.timeout(1800)
def test_killed_ssh_sshd_ranks_and_gateways_leave_nothing(
    client: SshClient, tell: Callable[..., None]
):
    """Five times each of ssh, sshd and the remote program, ten gateways, and twenty ranks."""
    machine = SshMachine(client, "one")
    gateway = start_gateway(client, machine)
    dice = random.Random(17)
    victims = [*["ssh", "sshd", "remote"] * 5, *["gateway"] * 10, *["rank"] * 20]
    dice.shuffle(victims)
    longest_s: dict[str, float] = {}
    text = say(gateway, "on-one")
    assert text
    try:
        for victim in victims:
            assert eventually(functools.partial(say, gateway, "on-one"), START_S) == text
            ranks = processes(gateway, "on-one", machine)
            match victim:
                case "ssh":
                    for process in psutil.Process(gateway.pid).children():
                        if process.name() == "ssh":
                            process.kill()
                case "sshd":
                    machine.kill_sessions()
                case "remote":
                    os.kill(psutil.Process(ranks[1]).ppid(), signal.SIGKILL)
                case "gateway":
                    gateway.process.kill()
                case _:
                    os.kill(dice.choice(ranks), signal.SIGKILL)
            longest_s[victim] = max(longest_s.get(victim, 0.0), gone_within(ranks))
            if victim == "gateway":
                gateway.process.wait()
                gateway.stop()
                eventually(lambda: not machine.remotes())
                gateway = start_gateway(client, machine)
        tell(**{f"processes_gone_after_{name}_s": s for name, s in longest_s.items()})
    finally:
        try:
            gateway.stop()
        finally:
            machine.stop()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def networks() -> Iterator[dict[str, str]]:
    """Two namespaces, each with an address of its own on a bridge of this one."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("it takes root and iproute2")
    addresses = {"one": "10.77.0.2", "two": "10.77.0.3"}
    try:
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", "10.77.0.1/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for name, address in addresses.items():
            space, cable = f"bh-{name}", f"bh-{name}-near"
            _ip("netns", "add", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", cable, "master", BRIDGE, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        _remove(addresses)
        pytest.skip(f"no namespaces can be made here: {error.stderr.decode().strip()}")
    yield addresses
    _remove(addresses)


def _remove(names: dict[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", f"bh-{name}"], check=False, capture_output=True)
    subprocess.run(["ip", "link", "del", BRIDGE], check=False, capture_output=True)


def test_host_that_is_cut_off_leaves_the_other_serving(
    client: SshClient, networks: dict[str, str], tell: Callable[..., None]
):
    """Each host is in a network namespace."""
    machines = {
        name: SshMachine(
            client, name, address=address, prefix=("ip", "netns", "exec", f"bh-{name}")
        )
        for name, address in networks.items()
    }
    gateway = start_gateway(client, *machines.values())
    try:
        text = say(gateway, "on-one")
        assert text
        assert say(gateway, "on-two") == text
        for round_ in range(3):
            cut, other = processes(gateway, "on-one", machines["one"]), machines["two"].ranks()
            _ip("link", "set", "bh-one-near", "down")
            tell(round=round_, processes_gone_after_s=gone_within(cut))
            assert say(gateway, "on-two") == text
            assert machines["two"].ranks() == other
            _ip("link", "set", "bh-one-near", "up")
            assert eventually(lambda: say(gateway, "on-one"), START_S) == text
    finally:
        gateway.stop()
        for machine in machines.values():
            machine.stop()
