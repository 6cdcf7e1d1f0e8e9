"""An agent and the ranks that a gateway has on its host: started, measured, and ended whatever dies
or is cut in between. The ranks are real worker processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from gateway.memory.execution import NoRoomError
from gateway.system.tls import fingerprint_of_file
from gateway.workers.agent_bodies import API, Opening
from gateway.workers.host import RankEnd
from gateway.workers.leased import LeasedRank
from gateway.workers.process import ExitStatus
from gateway.workers.remote_host import AgentLink, RemoteHost
from tests.support.agent import Agent, Link, order, rank_log, scripted_gateway
from tests.support.certificates import write_certificate
from tests.support.edge import shortened
from tests.support.gateway import eventually, gone

pytestmark = pytest.mark.slow

# How a worker ends that is asked to, be it before it listens.
ASKED = (ExitStatus(0, None), ExitStatus(None, "SIGTERM"))


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    agent = Agent()
    yield agent
    assert agent.stop() == 0


@pytest.fixture
async def host(agent: Agent, tmp_path: Path) -> AsyncIterator[RemoteHost]:
    async with reached(agent.link(), tmp_path) as host:
        yield host


@contextlib.asynccontextmanager
async def reached(link: AgentLink, folder: Path) -> AsyncIterator[RemoteHost]:
    log = rank_log(folder)
    try:
        yield RemoteHost(link, log)
    finally:
        await link.close()
        log.close()


def insecure(agent: Agent, key: str | None = None) -> httpx.Client:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=agent.url, verify=False, headers=headers, timeout=60.0)


def address_of(agent: Agent) -> tuple[str, int]:
    return "127.0.0.1", agent.port


def key_of(agent: Agent) -> str:
    return Path(agent.key_file).read_text().strip()


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, condition)


def logged(folder: Path) -> str:
    path = folder / "rank.log"
    return path.read_text() if path.exists() else ""


async def end_of(rank: LeasedRank) -> RankEnd:
    return await asyncio.wait_for(rank.ended(), 120)


async def test_a_rank_is_started_measured_and_ended(agent, host, tmp_path):
    before = await host.figures()
    rank = await host.start(order(1_000_000_000))
    assert psutil.Process(rank.pid).ppid() == agent.process.pid
    assert "worker/__main__.py" in " ".join(psutil.Process(rank.pid).cmdline())
    assert (await rank.footprint()).current_bytes > 0
    assert before.free_bytes - (await host.figures()).free_bytes >= 1_000_000_000
    # Before it has threads it doesn't know the signal.
    await until(lambda: psutil.Process(rank.pid).num_threads() > 1)
    await rank.dump()
    await until(lambda: "[rank 1]   File" in logged(tmp_path))
    await rank.end()
    assert (await end_of(rank)).status in ASKED
    assert gone(rank.pid)
    assert (await host.figures()).free_bytes == before.free_bytes


async def test_a_killed_rank_says_by_what(host):
    rank = await host.start(order())
    await rank.kill()
    end = await end_of(rank)
    assert end.status == ExitStatus(None, "SIGKILL")


async def test_a_rank_that_dies_by_itself_is_told_with_its_last_lines(host, tmp_path):
    rank = await host.start(order(arguments=("--no-such-option",)))
    end = await end_of(rank)
    assert end.status == ExitStatus(2, None)
    await until(lambda: "error: the following arguments are required" in logged(tmp_path))


async def test_silent_strangers_keep_nobody_out(tmp_path):
    """Who never begins TLS has a descriptor for a while, and makes place for whoever comes."""
    agent = Agent(environment=shortened(tmp_path / "site", seconds=5.0, files=320))
    try:
        process = psutil.Process(agent.process.pid)
        before = process.num_fds()
        with contextlib.ExitStack() as stack:
            silent = []
            for _ in range(600):
                stack.enter_context(connection := socket.create_connection(address_of(agent), 60))
                silent.append(connection)
            with insecure(agent, key_of(agent)) as client:
                assert client.get("/v1/host").status_code == 200
            assert process.num_fds() - before < 200
            for connection in silent:
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
        assert "Traceback" not in agent.log
    finally:
        assert agent.stop() == 0


async def test_without_room_there_is_no_process_and_the_numbers_are_told(agent, host):
    before = agent.children()
    with pytest.raises(NoRoomError, match=r"needs 9\.0 GB, and 8\.0 GB of the budget of 8\.0 GB"):
        await host.start(order(9_000_000_000))
    assert agent.children() == before


async def test_forbidden_program_is_refused(agent, host):
    for wrong in (
        order(arguments=("--parent", "1")),
        order(environment={"LD_PRELOAD": "/tmp/evil.so"}),
        order(python="/bin/sh"),
    ):
        before = agent.children()
        with pytest.raises(OSError, match=r"parent|LD_PRELOAD|python"):
            await host.start(wrong)
        assert agent.children() == before


async def test_free_ports_are_told(host):
    ports = await host.free_ports(3)
    assert len(set(ports)) == 3


async def test_a_wrong_key_opens_nothing(agent, tmp_path):
    wrong = tmp_path / "wrong.key"
    wrong.write_text("sk-bulkhead-wrong")
    wrong.chmod(0o600)
    link = AgentLink("studio2", agent.url, str(wrong), agent.fingerprint, "test")
    async with reached(link, tmp_path) as host:
        with pytest.raises(OSError, match="doesn't take the key"):
            await host.start(order())
        with pytest.raises(OSError, match="doesn't take the key"):
            await host.figures()
    with insecure(agent) as client:
        for path in ("/v1/host", "/v1/leases", "/nothing"):
            assert client.get(path).status_code == 401


async def test_a_wrong_fingerprint_gets_no_key(agent, tmp_path):
    link = AgentLink("studio2", agent.url, agent.key_file, "00" * 32, "test")
    async with reached(link, tmp_path) as host:
        with pytest.raises(OSError, match=f"another certificate .* {re.escape(agent.fingerprint)}"):
            await host.start(order())


def test_key_and_certificate_are_this_accounts_alone_and_stay():
    agent = Agent()
    try:
        for name in ("agent.key", "agent-tls.key"):
            assert stat.S_IMODE((agent.state_dir / name).stat().st_mode) == 0o600
        assert key_of(agent) not in agent.log
        eventually(lambda: agent.fingerprint in agent.log)
        assert f'fingerprint = "{agent.fingerprint}"' in agent.log
    finally:
        assert agent.stop() == 0


def test_another_version_is_refused_with_both(agent):
    with insecure(agent, key_of(agent)) as client:
        versions = client.get("/v1/host").json()["versions"]
        other = Opening(API, "test", versions | {"mlx": "0.1"})
        answer = client.post("/v1/leases", content=msgspec.json.encode(other))
        assert answer.status_code == 400
        assert "mlx 0.1" in answer.text
        assert f"mlx {versions['mlx']}" in answer.text
        other = Opening(API + 1, "test", versions)
        answer = client.post("/v1/leases", content=msgspec.json.encode(other))
        assert "install the same Bulkhead" in answer.text


def test_requests_that_are_none(agent):
    with insecure(agent, key_of(agent)) as client:
        assert client.post("/v1/leases", content=b"{").status_code == 400
        assert client.post("/v1/ports", json={"count": 65}).status_code == 400
        assert client.post("/v1/leases/none/turn", json={"confirmed": 0}).status_code == 404
        assert client.post("/v1/ranks/none/kill").status_code == 404
        assert client.get("/v1/nothing").status_code == 404
        assert client.delete("/v1/host").status_code == 405
        huge = b" " * (33 << 20)
        assert client.post("/v1/leases", content=huge).status_code == 413


def test_a_gateway_that_is_killed_takes_its_ranks_along(agent):
    with scripted_gateway(agent) as (gateway, rank):
        assert not gone(rank)
        gateway.send_signal(signal.SIGKILL)
        eventually(lambda: gone(rank))
    eventually(lambda: "connection was closed" in agent.log)


def test_a_gateway_that_is_stopped_loses_its_ranks_after_the_lease(agent):
    """It is as silent as one behind a link that is cut."""
    with scripted_gateway(agent) as (gateway, rank):
        gateway.send_signal(signal.SIGSTOP)
        eventually(lambda: gone(rank))
        assert re.search(rf"Rank {rank} .* not been heard for 4 s", agent.log)


async def test_an_agent_that_is_killed_takes_its_ranks_along(tmp_path):
    agent = Agent()
    try:
        async with reached(agent.link(), tmp_path) as host:
            rank = await host.start(order())
            agent.process.send_signal(signal.SIGKILL)
            end = await end_of(rank)
            assert end.status is None
            assert "out of reach for 4 s" in end.reason
            assert gone(rank.pid)
            with pytest.raises(OSError, match="can't be reached"):
                await host.start(order())
    finally:
        agent.stop()


async def test_an_agent_that_ends_ends_its_ranks(tmp_path):
    agent = Agent()
    async with reached(agent.link(), tmp_path) as host:
        rank = await host.start(order())
        await until(lambda: rank.pid in agent.children())
        assert await asyncio.to_thread(agent.stop) == 0
        assert gone(rank.pid)
        assert (await end_of(rank)).reason


async def test_a_link_that_is_cut_for_long_ends_the_rank_on_both_sides(agent, tmp_path):
    link = Link(agent.port)
    try:
        async with reached(agent.link(link.url), tmp_path) as host:
            rank = await host.start(order())
            link.cut()
            with pytest.raises(TimeoutError):
                await rank.kill()
            assert not gone(rank.pid)
            end = await end_of(rank)
            assert end.status is None
            assert "out of reach" in end.reason
            # The agent was first.
            assert gone(rank.pid)
            link.mend()
            again = await host.start(order())
            assert not gone(again.pid)
            await again.kill()
            await end_of(again)
    finally:
        link.close()


async def test_a_link_that_comes_back_in_time_loses_nothing(agent, tmp_path):
    link = Link(agent.port)
    try:
        async with reached(agent.link(link.url), tmp_path) as host:
            rank = await host.start(order())
            link.cut()
            os.kill(rank.pid, signal.SIGTERM)
            await until(lambda: gone(rank.pid))
            link.mend()
            # How it ended, although nobody could say so when it did.
            assert (await end_of(rank)).status in ASKED
            other = await host.start(order())
            assert not gone(other.pid)
    finally:
        link.close()


async def test_a_lease_that_has_ended_there_unheard_is_followed_by_another(agent, tmp_path):
    """As that of an agent that was restarted a moment ago."""
    log = rank_log(tmp_path)
    link = agent.link()
    try:
        first = await link.start(order(), log)
        assert link._leasehold is not None
        with insecure(agent, key_of(agent)) as client:
            ended = client.delete(f"/v1/leases/{link._leasehold.lease}")
        assert ended.is_success, ended.text
        second = await link.start(order(), log)
        assert await asyncio.wait_for(first.ended(), 120)
        assert not gone(second.pid)
    finally:
        await link.close()
        log.close()
    await until(lambda: not agent.children())


async def test_a_rank_whose_start_nobody_heard_of_is_ended(agent, tmp_path):
    """The order goes through, and its answer doesn't come: it counts as one that runs until it is
    known to be gone.
    """
    way = Link(agent.port)
    link = agent.link(way.url)
    log = rank_log(tmp_path)
    try:
        kept = await link.start(order(), log)
        way.mute()
        starting = asyncio.ensure_future(link.start(order(name="lost"), log))
        await until(lambda: len(agent.children()) == 2)
        assert not starting.done()
        way.sever()
        lost = await asyncio.wait_for(starting, 60)
        way.mend()
        end = await asyncio.wait_for(lost.ended(), 120)
        assert end.status is None
        assert "studio2 didn't say whether it was started" in end.reason
        assert agent.children() == [kept.pid]
    finally:
        await link.close()
        log.close()
        way.close()
    await until(lambda: not agent.children())


def test_a_certificate_of_ones_own_can_be_given(tmp_path):
    certificate, key = write_certificate(tmp_path)
    agent = Agent(arguments=("--certificate", str(certificate), "--certificate-key", str(key)))
    try:
        eventually(lambda: fingerprint_of_file(certificate) in agent.log)
        assert not (agent.state_dir / "agent.crt").exists()
    finally:
        assert agent.stop() == 0
