"""A rank on another machine by ssh: started, measured, and ended whatever dies or is cut. The
machine is Debian's sshd on loopback, and the ranks are real worker processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from gateway.config.model_settings import HostSettings
from gateway.memory.execution import NoRoomError
from gateway.workers.host import RankEnd
from gateway.workers.process import ExitStatus
from gateway.workers.ssh_host import RemoteRank, SshHost
from gateway.workers.ssh_messages import RankStarted, StartRank
from gateway.workers.ssh_session import SshSession
from gateway.workers.worker_log import RankLog
from tests.support.gateway import eventually, gone
from tests.support.ssh_host import (
    Link,
    SshClient,
    SshMachine,
    make_key,
    needs_sshd,
    order,
    rank_log,
    scripted_gateway,
)

pytestmark = [pytest.mark.slow, needs_sshd]

# How a worker ends that is asked to, be it before it listens.
ASKED = (ExitStatus(0, None), ExitStatus(None, "SIGTERM"))


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


@pytest.fixture(autouse=True)
def _path(client: SshClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", client.path)


@pytest.fixture
async def host(machine: SshMachine) -> AsyncIterator[SshHost]:
    async with reached(machine) as host:
        yield host


@contextlib.asynccontextmanager
async def reached(machine: SshMachine) -> AsyncIterator[SshHost]:
    host = SshHost(machine.name, machine.settings)
    try:
        yield host
    finally:
        await host.close()
        await until(lambda: not machine.remotes())


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, condition)


def logged(folder: Path) -> str:
    path = folder / "rank.log"
    return path.read_text() if path.exists() else ""


async def end_of(rank: RemoteRank) -> RankEnd:
    return await asyncio.wait_for(rank.ended(), 120)


def parent(rank: RemoteRank) -> int:
    return psutil.Process(rank.pid).ppid()


async def test_rank_is_started_measured_and_ended(machine, host, tmp_path):
    before = await host.figures()
    rank = await host.start(order(1_000_000_000), rank_log(tmp_path))
    assert parent(rank) in machine.remotes()
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
    await until(lambda: len(machine.remotes()) == 1)


async def test_killed_rank_reports_its_signal(host, tmp_path):
    rank = await host.start(order(), rank_log(tmp_path))
    await rank.kill()
    end = await end_of(rank)
    assert end == RankEnd(ExitStatus(None, "SIGKILL"), "signal SIGKILL")


async def test_dead_rank_is_reported_with_its_last_lines(host, tmp_path):
    rank = await host.start(order(arguments=("--no-such-option",)), rank_log(tmp_path))
    end = await end_of(rank)
    assert end.status == ExitStatus(2, None)
    await until(lambda: "error: the following arguments are required" in logged(tmp_path))


async def test_rank_without_room_is_refused_with_the_numbers(machine, host, tmp_path):
    with pytest.raises(NoRoomError, match=r"needs 9\.0 GB, and 8\.0 GB of the budget of 8\.0 GB"):
        await host.start(order(9_000_000_000), rank_log(tmp_path))
    assert not machine.ranks()


async def test_rank_with_another_python_is_refused(machine, host, tmp_path):
    with pytest.raises(OSError, match="python"):
        await host.start(order(python="/bin/sh"), rank_log(tmp_path))
    assert not machine.ranks()


async def test_host_names_its_address_and_free_ports(host):
    assert await host.address() == "127.0.0.1"
    assert len(set(await host.free_ports(3))) == 3


async def test_reservation_is_raised_as_far_as_the_budget_allows(host, tmp_path):
    rank = await host.start(order(1_000_000_000), rank_log(tmp_path))
    assert await rank.reserve(2_000_000_000) == 2_000_000_000
    assert await rank.reserve(9_000_000_000) == 8_000_000_000
    await rank.kill()
    await end_of(rank)
    with pytest.raises(OSError, match="out of reach"):
        await rank.reserve(1)


async def test_key_that_sshd_refuses_is_named(client, machine, tmp_path):
    make_key(tmp_path / "other")
    config = (client.folder / "config").read_text()
    strange = config.replace(f"IdentityFile {client.key}", f"IdentityFile {tmp_path}/other")
    (client.folder / "config").write_text(strange)
    try:
        async with reached(machine) as host:
            with pytest.raises(OSError, match=r"exit code 255: .*Permission denied"):
                await host.figures()
            with pytest.raises(OSError, match="Permission denied"):
                await host.start(order(), rank_log(tmp_path))
    finally:
        (client.folder / "config").write_text(config)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("/nowhere/bulkhead", "No such file or directory"),
        ("echo", "exit code 0"),
        ("cat /dev/zero #", "its shell prints without end"),
    ],
)
async def test_command_that_is_no_bulkhead_is_named(machine, command, reason):
    settings = msgspec.structs.replace(machine.settings, command=command)
    host = SshHost(machine.name, settings)
    try:
        with pytest.raises(OSError, match=reason):
            await host.figures()
    finally:
        await host.close()


async def test_host_that_nothing_listens_on_is_named(client):
    client.add("nobody", "127.0.0.1", 1, "ssh-ed25519 AAAA")
    host = SshHost("nobody", HostSettings(ssh="nobody"))
    try:
        with pytest.raises(OSError, match="Connection refused"):
            await host.figures()
    finally:
        await host.close()


async def test_prints_of_a_shell_break_no_message(machine):
    settings = msgspec.structs.replace(
        machine.settings, command=f"echo Welcome; {machine.settings.command}"
    )
    host = SshHost(machine.name, settings)
    try:
        assert (await host.figures()).budget_bytes == 8_000_000_000
    finally:
        await host.close()


async def test_other_versions_are_refused_with_both(machine, monkeypatch):
    here = {"protocol": "0", "mlx": "0.1", "mlx-lm": "0.2"}
    monkeypatch.setattr("gateway.workers.ssh_session.versions", lambda: here)
    async with reached(machine) as host:
        with pytest.raises(OSError, match=r"mlx .* there and 0\.1 here.*install the same"):
            await host.figures()


def test_killed_gateway_leaves_no_rank(client, machine):
    with scripted_gateway(machine, client.path) as (gateway, rank):
        assert not gone(rank)
        gateway.send_signal(signal.SIGKILL)
        eventually(lambda: gone(rank))
    eventually(lambda: not machine.remotes())


def test_stopped_gateway_loses_its_rank_after_the_silence(client, machine):
    """It is as silent as one behind a link that is cut."""
    with scripted_gateway(machine, client.path) as (gateway, rank):
        gateway.send_signal(signal.SIGSTOP)
        eventually(lambda: gone(rank))
    eventually(lambda: not machine.remotes())


async def test_killed_ssh_ends_the_rank(machine, host, tmp_path):
    rank = await host.start(order(), rank_log(tmp_path))
    assert rank._session is not None
    os.kill(rank._session.pid, signal.SIGKILL)
    end = await end_of(rank)
    assert end == RankEnd(None, "ssh to studio2 ended with signal 9")
    assert gone(rank.pid)


async def test_killed_sshd_ends_the_rank(machine, host, tmp_path):
    rank = await host.start(order(), rank_log(tmp_path))
    machine.kill_sessions()
    end = await end_of(rank)
    assert end.status is None
    assert end.reason.startswith("ssh to studio2 ended with exit code 255: ")
    # Sentences go on after it.
    assert not end.reason.endswith(".")
    assert gone(rank.pid)
    assert (await host.figures()).free_bytes == 8_000_000_000


async def test_killed_remote_program_ends_the_rank(host, tmp_path):
    rank = await host.start(order(), rank_log(tmp_path))
    os.kill(parent(rank), signal.SIGKILL)
    end = await end_of(rank)
    assert end.status is None
    assert end.reason.startswith("ssh to studio2 ended with ")
    assert gone(rank.pid)


async def test_stopped_rank_of_a_killed_remote_program_is_swept(host, tmp_path):
    rank = await host.start(order(), rank_log(tmp_path))
    await until(lambda: psutil.Process(rank.pid).num_threads() > 1)
    os.kill(rank.pid, signal.SIGSTOP)
    os.kill(parent(rank), signal.SIGKILL)
    await end_of(rank)
    other = await host.start(order(), rank_log(tmp_path))
    await until(lambda: gone(rank.pid))
    assert not gone(other.pid)


async def test_terminated_remote_program_ends_the_rank(host, tmp_path):
    rank = await host.start(order(), rank_log(tmp_path))
    os.kill(parent(rank), signal.SIGTERM)
    end = await end_of(rank)
    assert end.by_host
    assert end.reason.startswith("its host has ended it, as its `bulkhead remote` got SIGTERM: ")
    assert gone(rank.pid)


async def test_stopped_remote_program_counts_as_silent(host, tmp_path):
    rank = await host.start(order(), rank_log(tmp_path))
    remote = parent(rank)
    os.kill(remote, signal.SIGSTOP)
    try:
        end = await end_of(rank)
    finally:
        os.kill(remote, signal.SIGCONT)
    assert end == RankEnd(None, "studio2 has been silent for 10 s")
    await until(lambda: gone(rank.pid))


async def test_stopped_rank_is_killed(host, tmp_path):
    rank = await host.start(order(), rank_log(tmp_path))
    os.kill(rank.pid, signal.SIGSTOP)
    await rank.kill()
    assert (await end_of(rank)).status == ExitStatus(None, "SIGKILL")


@pytest.fixture
def link(machine: SshMachine) -> Iterator[Link]:
    link = Link(machine.port)
    machine.through(link)
    yield link
    link.close()
    straight = Link(machine.port)
    machine.through(straight)


async def test_link_that_is_cut_for_long_ends_the_rank_on_both_sides(machine, link, tmp_path):
    async with reached(machine) as host:
        rank = await host.start(order(), rank_log(tmp_path))
        link.cut()
        with pytest.raises(TimeoutError):
            await rank.kill()
        assert not gone(rank.pid)
        end = await end_of(rank)
        assert end.status is None
        # The remote program was first.
        assert gone(rank.pid)
        link.mend()
        again = await host.start(order(), rank_log(tmp_path))
        assert not gone(again.pid)
        await again.kill()
        await end_of(again)


async def test_link_that_comes_back_in_time_loses_nothing(machine, link, tmp_path):
    async with reached(machine) as host:
        rank = await host.start(order(), rank_log(tmp_path))
        link.cut()
        os.kill(rank.pid, signal.SIGTERM)
        await until(lambda: gone(rank.pid))
        link.mend()
        # How it ended, although nobody could report it then.
        assert (await end_of(rank)).status in ASKED
        other = await host.start(order(), rank_log(tmp_path))
        assert not gone(other.pid)


async def test_rank_whose_start_was_not_answered_counts_as_started(machine, host, tmp_path):
    """The remote program starts the rank, and its answer doesn't come."""
    rank = RemoteRank(host, 1, RankLog(rank_log(tmp_path), 1))
    await host.read()
    ask = SshSession.ask
    started: list[RankStarted] = []

    async def ask_in_vain(session: SshSession, request: StartRank, kind: object, _: float) -> Any:
        started.append(await ask(session, request, RankStarted, 10.0))
        raise TimeoutError("studio2 did not answer")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SshSession, "ask", ask_in_vain)
        await rank.start(order(), machine.settings)
    end = await end_of(rank)
    reason = "studio2 didn't say whether it was started: studio2 did not answer"
    assert end == RankEnd(None, reason)
    assert gone(started[0].process.pid)
