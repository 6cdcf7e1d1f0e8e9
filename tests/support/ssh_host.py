"""Other machines for tests: Debian's sshd on loopback, each with a home of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gateway.config.model_settings import HostSettings
from gateway.workers.host import RankOrder
from gateway.workers.ssh_host import SshHost
from gateway.workers.worker_log import WorkerLog
from protocol.channel import KEY_BYTES
from tests.support.folders import short_folder
from tests.support.gateway import BULKHEAD, START_S, eventually

SSH = shutil.which("ssh")
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
needs_sshd = pytest.mark.skipif(SSH is None or SSHD is None, reason="there is no sshd")


class SshClient:
    """What ssh knows on the gateway's machine: a key, and the machines that it reaches. `path` is
    the PATH on which ssh has this configuration.
    """

    def __init__(self) -> None:
        self._folder = short_folder()
        self.folder = Path(self._folder.name)
        self.key = self.folder / "key"
        make_key(self.key)
        wrapper = self.folder / "bin" / "ssh"
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nexec {SSH} -F {self.folder}/config "$@"\n')
        wrapper.chmod(0o755)
        self.path = f"{wrapper.parent}:{os.environ['PATH']}"

    def add(self, name: str, address: str, port: int, host_key: str) -> None:
        """Know a machine; also again, at another port."""
        with (self.folder / "known").open("a") as known:
            known.write(f"{name} {host_key}\n")
        # The first value counts.
        config = self.folder / "config"
        before = config.read_text() if config.exists() else ""
        config.write_text(
            f"Host {name}\n  HostName {address}\n  Port {port}\n  HostKeyAlias {name}\n"
            f"  User {getpass.getuser()}\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known\n{before}"
        )

    def close(self) -> None:
        self._folder.cleanup()


def make_key(path: Path) -> str:
    """Make a pair of keys; returns the public one."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=30
    )
    return path.with_suffix(".pub").read_text().strip()


class SshMachine:
    """A machine that the client reaches by the name `name`."""

    def __init__(
        self,
        client: SshClient,
        name: str = "studio2",
        *,
        address: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        """`prefix` is a command that becomes sshd, as `ip netns exec` does."""
        self.name = name
        self.address = address
        self._client = client
        self._prefix = prefix
        self._folder = short_folder()
        folder = Path(self._folder.name)
        self.home = folder / "home"
        self.home.mkdir()
        host_key = make_key(folder / "host")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        variables = {"HOME": str(self.home), **(environment or {})}
        (folder / "sshd.conf").write_text(
            f"Port {self.port}\nListenAddress {address}\nHostKey {folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {client.key}.pub\nStrictModes no\nUsePAM no\n"
            f"SetEnv {' '.join(f'{k}={v}' for k, v in variables.items())}\n"
        )
        self._config = folder / "sshd.conf"
        client.add(name, address, self.port, host_key)
        self._host_key = host_key
        self.log = folder / "sshd.log"
        self.start()

    def start(self) -> None:
        """Also again, after its end."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*self._prefix, str(SSHD), "-D", "-e", "-f", str(self._config)], stderr=log
            )
        eventually(lambda: "Server listening" in self.log.read_text(), START_S)

    def through(self, link: Link) -> None:
        """Have the client come over this link from now on."""
        self._client.add(self.name, "127.0.0.1", link.port, self._host_key)

    @property
    def settings(self) -> HostSettings:
        return HostSettings(ssh=self.name, command=BULKHEAD, budget="8GB")

    def table(self, name: str | None = None, budget: str = "8GB") -> str:
        """What the configuration of a gateway has of it."""
        return (
            f'[hosts.{name or self.name}]\nssh = "{self.name}"\ncommand = "{BULKHEAD}"\n'
            f'budget = "{budget}"\n'
        )

    def sessions(self) -> list[int]:
        """The processes of sshd, one for each connection."""
        return [p.pid for p in _children(self.process.pid)]

    def remotes(self) -> list[int]:
        """The processes of `bulkhead remote`."""
        return [p.pid for p in self._processes() if "remote" in p.cmdline()]

    def ranks(self) -> list[int]:
        return [p.pid for p in self._processes() if "--parent" in p.cmdline()]

    def kill_sessions(self) -> None:
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End sshd with all connections. Nothing may be left of ranks."""
        self.kill_sessions()
        self.process.kill()
        self.process.wait()
        try:
            eventually(lambda: not [*self.ranks(), *self.remotes()])
        finally:
            self._folder.cleanup()

    def _processes(self) -> Iterator[psutil.Process]:
        """All processes with this machine's home."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if (
                    process.environ().get("HOME") == str(self.home)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    yield process


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children()
    return []


def order(needed_bytes: int = 1, **fields: object) -> RankOrder:
    """A worker that waits for a gateway which isn't there: a process that lives until it is ended,
    and ends when it is asked to.
    """
    return RankOrder(
        **{
            "name": "big",
            "incarnation": 1,
            "rank": 1,
            "arguments": ("--endpoint", "ipc:///nobody/listens.sock", "--incarnation", "1"),
            "environment": {},
            "secret": b"k" * KEY_BYTES,
            "needed_bytes": needed_bytes,
            **fields,
        }
    )


def model_table(model_id: str, path: str | Path, *hosts: str) -> str:
    """What the configuration of a gateway has of a model with ranks on these."""
    ranks = ", ".join(f'{{ host = "{host}" }}' for host in hosts)
    return f'[models.{model_id}]\npath = "{path}"\n' + (f"ranks = [{ranks}]\n" if hosts else "")


def rank_log(folder: Path) -> WorkerLog:
    return WorkerLog(folder / "rank.log")


class Link:
    """Passes on what comes to its port, until it is cut: then nothing more is passed, in either
    direction, and no connection is closed.
    """

    def __init__(self, port: int) -> None:
        """`port` is where it leads, on loopback."""
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._whole = threading.Event()
        self._whole.set()
        self._answers = threading.Event()
        self._answers.set()
        self._over = False
        self._connected: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        self._whole.clear()

    def mute(self) -> None:
        """What is sent arrives, and answers don't."""
        self._answers.clear()

    def sever(self) -> None:
        """Close the connections there are: whoever waits for an answer hears that it won't come."""
        for item in list(self._connected):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._whole.set()
        self._answers.set()

    def close(self) -> None:
        self._over = True
        self.mend()
        # Wakes the thread that accepts, unlike a close alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._over:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._whole.wait()
        with near, contextlib.suppress(OSError):
            far = socket.create_connection(("127.0.0.1", self._to), 10)
            self._connected.add(near)
            with far:
                try:
                    self._pass(near, far)
                finally:
                    self._connected.discard(near)

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        others = {near: far, far: near}
        while not self._over:
            readable, _, _ = select.select([near, far], [], [], 1.0)
            # Also the end of a connection is no news while the link is cut.
            self._whole.wait()
            for item in readable:
                if not (data := item.recv(65536)):
                    return
                if item is far:
                    self._answers.wait()
                others[item].sendall(data)


@contextlib.contextmanager
def scripted_gateway(machine: SshMachine, path: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that starts a rank and keeps its session until it is killed, and the rank's pid."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ssh_host", machine.name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def _hold_a_rank(name: str) -> None:
    import asyncio

    host = SshHost(name, HostSettings(ssh=name, command=BULKHEAD, budget="8GB"))
    with short_folder() as folder:
        rank = await host.start(order(), rank_log(Path(folder)))
        print(rank.pid, flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    import asyncio

    asyncio.run(_hold_a_rank(*sys.argv[1:2]))
