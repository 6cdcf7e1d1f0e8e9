"""A real agent process for tests, a gateway's side of it, and a link that can be cut."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from gateway.system.tls import fingerprint_of_file
from gateway.workers.host import RankOrder
from gateway.workers.remote_host import AgentLink
from gateway.workers.worker_log import WorkerLog
from protocol.channel import KEY_BYTES
from tests.support.folders import short_folder
from tests.support.gateway import BULKHEAD, STOP_S

LEASE_S = 4.0


class Agent:
    """`bulkhead agent` on a free port of loopback, in a state folder of its own."""

    def __init__(
        self,
        budget: str = "8GB",
        lease: str = f"{LEASE_S:g}s",
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: tuple[str, ...] = (),
        arguments: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        """`prefix` is a command that becomes the agent's, as `ip netns exec` does."""
        self._environment = {**os.environ, **(environment or {})}
        self._folder = short_folder()
        self.state_dir = Path(self._folder.name) / "state"
        self._command = [
            *(*prefix, BULKHEAD, "agent", "--host", host, "--port"),
            *(str(port), "--state-dir", str(self.state_dir)),
            *("--memory-budget", budget, "--lease", lease, *arguments),
        ]
        self._log: list[str] = []
        self.start()

    def start(self) -> None:
        """Also again, after its end: with the key, the certificate and the port that it had."""
        self.process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        threading.Thread(target=self._collect_log, daemon=True).start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"https://\S+", line)
        assert found is not None, f"no address: {line!r}, log: {self.log}"
        self.url = found[0]
        self._command[self._command.index("--port") + 1] = str(self.port)

    @property
    def log(self) -> str:
        return "\n".join(self._log)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def key_file(self) -> str:
        return str(self.state_dir / "agent.key")

    @property
    def fingerprint(self) -> str:
        return fingerprint_of_file(self.state_dir / "agent.crt")

    def link(self, url: str | None = None) -> AgentLink:
        """To be closed by the caller."""
        return AgentLink("studio2", url or self.url, self.key_file, self.fingerprint, "test")

    def table(self, name: str = "studio2", url: str | None = None) -> str:
        """What the configuration of a gateway has of it."""
        return (
            f'[hosts.{name}]\nurl = "{url or self.url}"\nkey_file = "{self.key_file}"\n'
            f'fingerprint = "{self.fingerprint}"\n'
        )

    def children(self) -> list[int]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children()
            return [each.pid for each in found if each.status() != psutil.STATUS_ZOMBIE]
        return []

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._folder.cleanup()

    def _collect_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._log.append(line.rstrip("\n"))


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
    ranks = ", ".join(f'{{ host = "{each}" }}' for each in hosts)
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
    def url(self) -> str:
        return f"https://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        self._whole.clear()

    def mute(self) -> None:
        """What is sent arrives, and answers don't."""
        self._answers.clear()

    def sever(self) -> None:
        """Close the connections there are: whoever waits for an answer hears that it won't come."""
        for each in list(self._connected):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

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
            for each in readable:
                if not (data := each.recv(65536)):
                    return
                if each is far:
                    self._answers.wait()
                others[each].sendall(data)


@contextlib.contextmanager
def scripted_gateway(
    agent: Agent, url: str | None = None
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that starts a rank and keeps its lease until it is killed, and the rank's pid."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.support.agent"),
            *(url or agent.url, agent.key_file, agent.fingerprint),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def _keep_a_rank(url: str, key_file: str, fingerprint: str) -> None:
    import asyncio

    link = AgentLink("studio2", url, key_file, fingerprint, "scripted")
    with short_folder() as folder:
        rank = await link.start(order(), rank_log(Path(folder)))
        # News of its end come by a turn, and the next one is there before what is asked after it.
        brief = await link.start(order(arguments=()), rank_log(Path(folder)))
        await brief.ended()
        await link.host()
        print(rank.pid, flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    import asyncio

    asyncio.run(_keep_a_rank(*sys.argv[1:4]))
