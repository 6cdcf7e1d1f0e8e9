"""A supervisor whose worker and memory are the test's: it says when what happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from gateway.config.model import Model
from gateway.config.model_settings import ModelSettings
from gateway.config.settings import Settings
from gateway.config.tables import InForce
from gateway.memory.allocation import WorkerReading
from gateway.memory.estimate import Estimate
from gateway.memory.scheduler import MemoryScheduler
from gateway.models.lifecycle import ModelEvent, State
from gateway.models.model_memory import GatewayParts, ModelMemory
from gateway.models.model_supervisor import ModelSupervisor
from gateway.requests.request import Request, Terms
from gateway.system.child import ExitStatus
from gateway.system.events import EventLog
from gateway.workers.cache_failures import CacheFailures
from gateway.workers.rank_group import Loss
from gateway.workers.report import WorkerMemory, WorkerReport
from gateway.workers.shutdown_steps import ShutdownStep, TimedStep
from gateway.workers.starter import Starter
from gateway.workers.worker import Listener, Worker
from gateway.workers.worker_log import WorkerLog
from protocol.life import Bound, Device, Hello, MlxMemory, Ready
from protocol.message_base import Message
from protocol.messages import WorkerMessage
from protocol.requests import Generate, Sampling, TextPrompt

CRASHED = ExitStatus(code=1, signal=None)
STOPPED = ExitStatus(code=0, signal=None)


class _Descendants:
    async def look(self) -> None: ...


class ScriptedWorker:
    """Records the messages that it gets, and sends those of the test."""

    def __init__(self, supervisor: Listener, incarnation: int) -> None:
        self.mark: str | None = None
        self.incarnation = incarnation
        self.pid = 1000 + incarnation
        self.memory = WorkerMemory()
        self.ended = asyncio.Event()
        self.followers = None
        self.loss: Loss | None = None
        self.report = WorkerReport(self.memory)
        self.descendants = _Descendants()
        self.sent: list[Message] = []
        self.heard = asyncio.Event()
        self.shutdown_steps: list[ShutdownStep] = []
        self._supervisor = supervisor

    def send(self, message: Message) -> None:
        self.sent.append(message)
        self.heard.set()

    async def measure(self) -> WorkerReading | None:
        return None

    async def shut_down(self, steps: Iterable[TimedStep]) -> None:
        self.shutdown_steps += [timed.step for timed in steps]

    def says(self, message: WorkerMessage) -> None:
        self._supervisor.worker_sent(cast(Worker, self), message)

    def ends(self, status: ExitStatus) -> None:
        self.ended.set()
        self._supervisor.worker_ended(cast(Worker, self), status)


class _Memory:
    """Has room for everybody, as soon as the test says so."""

    def __init__(self) -> None:
        self.asked: ModelMemory | None = None
        self.gone_pids: list[int | None] = []

    def ask(self, model_memory: ModelMemory) -> None:
        self.asked = model_memory

    def withdraw(self, model_id: str) -> None:
        self.asked = None

    def gone(self, model_id: str, pid: int | None) -> None:
        self.gone_pids.append(pid)

    def ready(self, model_memory: ModelMemory) -> None: ...

    def ending(self, model_id: str) -> None: ...

    def wanted_along(self, model_id: str) -> bool:
        return False

    def estimate_of(self, model_id: str) -> Estimate | None:
        return None

    def bound(self, model_id: str) -> Bound | None:
        return None


class _Workers:
    def __init__(self) -> None:
        self.started: list[ScriptedWorker] = []
        # The next starts fail so.
        self.failure: Exception | None = None

    def start(
        self, model: Model, log: WorkerLog, supervisor: Listener, estimated: Estimate | None
    ) -> Worker:
        if self.failure is not None:
            raise self.failure
        worker = ScriptedWorker(supervisor, len(self.started) + 1)
        self.started.append(worker)
        log.mark_start(worker.pid, worker.incarnation)
        return cast(Worker, worker)


class ModelWorld:
    """`entries` are the events that the condition handled, each with the states before and after;
    `nested` counts those that came while another one was dealt with.
    """

    def __init__(self, folder: Path, settings: Settings | None = None, *, preload: bool) -> None:
        self.in_force = InForce(settings or Settings())
        self.memory = _Memory()
        self.workers = _Workers()
        self.events = EventLog()
        gateway = GatewayParts(
            self.in_force,
            self.events,
            cast(MemoryScheduler, self.memory),
            cast(Starter, self.workers),
            None,
            CacheFailures(folder / "cache-failures.json"),
        )
        model = Model("m", "/m", ModelSettings(path="/m", preload=preload))
        self.supervisor = ModelSupervisor(model, WorkerLog(folder / "m.log"), gateway)
        self.entries: list[tuple[ModelEvent, State, State]] = []
        self.nested = 0
        self._record()

    @property
    def state(self) -> State:
        return self.supervisor.state

    @property
    def worker(self) -> ScriptedWorker:
        """The last one."""
        return self.workers.started[-1]

    def request(self, name: str) -> Request:
        """One that was taken in."""
        generate = Generate(request_id=name, prompt=TextPrompt(name), sampling=Sampling(seed=1))
        now = asyncio.get_running_loop().time()
        request = Request(generate, Terms(deadline_s=1e9), now)
        self.supervisor.submit(request)
        return request

    def admit(self) -> None:
        assert self.memory.asked is not None
        asked, self.memory.asked = self.memory.asked, None
        asked.admitted(1_000_000)

    def come_up(self) -> None:
        """From its wait for memory until it is loaded."""
        self.admit()
        self.say_hello()
        self.say_ready()
        assert self.state is State.READY

    def say_hello(self) -> None:
        self.worker.says(
            Hello(
                protocol_version="1",
                pid=self.worker.pid,
                incarnation=self.worker.incarnation,
                python_version="3",
                mlx_version="0",
                mlx_lm_version="0",
                device=Device(name="a", architecture="b"),
            )
        )

    def say_ready(self, fingerprint: str = "f") -> None:
        self.worker.says(
            Ready(
                load_s=1.0,
                weight_bytes=1,
                context_tokens=10,
                fingerprint=fingerprint,
                memory=MlxMemory(),
            )
        )

    def crash(self) -> None:
        self.worker.ends(CRASHED)

    def emitted(self, kind: str) -> list[dict[str, object]]:
        return [event.fields for event in self.events.recent(100) if event.kind == kind]

    def _record(self) -> None:
        handle = self.supervisor.condition.handle
        depth = 0

        def recorded(event: ModelEvent, *arguments: object, **options: object) -> None:
            nonlocal depth
            self.nested += depth > 0
            depth += 1
            before = self.state
            try:
                handle(event, *arguments, **options)
            finally:
                depth -= 1
                self.entries.append((event, before, self.state))

        self.supervisor.condition.handle = recorded
