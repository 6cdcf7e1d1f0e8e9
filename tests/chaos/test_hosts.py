"""Ranks on other hosts, while links, agents and gateways are lost: nothing is left anywhere, and
what comes back serves again.
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

import pytest

from tests.support.agent import Agent, Link, model_table
from tests.support.gateway import START_S, Gateway, eventually, gone

pytestmark = pytest.mark.chaos

PROMPT = "Tell me a story about a small model."
SETTINGS = "[workers]\nrestart_limit = 1000\nheartbeat_timeout_s = 5\n"
BRIDGE = "bh-chaos"


def config(*agents: tuple[str, Agent]) -> str:
    tables = (
        each.table(name) + model_table(f"on-{name}", "demo", "local", name) for name, each in agents
    )
    return SETTINGS + "".join(tables)


def say(gateway: Gateway, model_id: str) -> str | None:
    """None if it can't be had now."""
    answer = gateway.chat(PROMPT, model_id, temperature=0, max_tokens=12)
    return answer.json()["choices"][0]["message"]["content"] if answer.is_success else None


def processes(gateway: Gateway, model_id: str, agent: Agent) -> list[int]:
    """Of a model's ranks, as soon as both are there."""
    (there,) = eventually(agent.children, START_S)
    return [gateway.worker_pid(model_id), there]


def gone_within(pids: list[int]) -> float:
    began = time.monotonic()
    eventually(lambda: all(map(gone, pids)))
    return round(time.monotonic() - began, 1)


def test_a_link_that_is_cut_and_mended(tell: Callable[..., None]):
    agent = Agent()
    link = Link(agent.port)
    table = agent.table("one", link.url) + model_table("on-one", "demo", "local", "one")
    gateway = Gateway(config=SETTINGS + table)
    try:
        text = say(gateway, "on-one")
        assert text
        left = processes(gateway, "on-one", agent)
        link.cut()
        tell(processes_gone_after_s=gone_within(left))
        assert eventually(lambda: say(gateway, "on-one") is None, START_S)
        link.mend()
        assert eventually(lambda: say(gateway, "on-one"), START_S) == text
    finally:
        link.close()
        assert gateway.stop() == 0
        assert agent.stop() == 0


@pytest.mark.timeout(1800)
def test_agents_ranks_and_gateways_are_killed(tell: Callable[..., None]):
    """Ten agents, ten gateways, and twenty ranks at random."""
    agent = Agent()
    gateway = Gateway(config=config(("one", agent)))
    dice = random.Random(17)
    victims = [*["agent"] * 10, *["gateway"] * 10, *["rank"] * 20]
    dice.shuffle(victims)
    longest_s: dict[str, float] = {}
    text = say(gateway, "on-one")
    assert text
    try:
        for victim in victims:
            assert eventually(functools.partial(say, gateway, "on-one"), START_S) == text
            left = processes(gateway, "on-one", agent)
            match victim:
                case "agent":
                    agent.process.kill()
                    agent.process.wait()
                case "gateway":
                    gateway.process.kill()
                case _:
                    os.kill(dice.choice(left), signal.SIGKILL)
            longest_s[victim] = max(longest_s.get(victim, 0.0), gone_within(left))
            if victim == "agent":
                agent.start()
            elif victim == "gateway":
                gateway.process.wait()
                gateway.stop()
                gateway = Gateway(config=config(("one", agent)))
        tell(**{f"processes_gone_after_{name}_s": each for name, each in longest_s.items()})
    finally:
        try:
            gateway.stop()
        finally:
            agent.stop()


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


def test_two_hosts_one_of_which_is_cut_off(networks: dict[str, str], tell: Callable[..., None]):
    """Each in a network namespace. The model on the other one goes on."""
    agents = {
        name: Agent(host=address, prefix=("ip", "netns", "exec", f"bh-{name}"))
        for name, address in networks.items()
    }
    gateway = Gateway(config=config(*agents.items()))
    try:
        text = say(gateway, "on-one")
        assert text
        assert say(gateway, "on-two") == text
        for round_ in range(3):
            cut, other = processes(gateway, "on-one", agents["one"]), agents["two"].children()
            _ip("link", "set", "bh-one-near", "down")
            tell(round=round_, processes_gone_after_s=gone_within(cut))
            assert say(gateway, "on-two") == text
            assert agents["two"].children() == other
            _ip("link", "set", "bh-one-near", "up")
            assert eventually(lambda: say(gateway, "on-one"), START_S) == text
    finally:
        gateway.stop()
        for each in agents.values():
            each.stop()
