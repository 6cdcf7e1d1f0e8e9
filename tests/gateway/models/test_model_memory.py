"""A reading of a worker goes up to the account, and what is decided down to the worker, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway.config.model import Model
from gateway.config.model_settings import ModelSettings
from gateway.memory.fitting import Learned
from gateway.memory.scheduler import MemoryLimits, MemoryScheduler
from gateway.models.lifecycle import State
from gateway.models.model_memory import ModelMemory
from gateway.system.events import EventLog
from gateway.system.memory_reading import Footprint
from gateway.workers.report import WorkerMemory
from protocol.life import (
    Limit,
    MlxMemory,
    Need,
)

GB = 1_000_000_000


class World:
    """One model that is ready, with a worker that notes what it is sent. MLX accounts for 10 GB."""

    def __init__(self, folder: Path, budget: int = 40 * GB, floor: int = 16 * GB) -> None:
        self.scheduler = MemoryScheduler(
            MemoryLimits(budget, 1.0, 0, 4096),
            Learned(folder / "learned.json"),
            None,
            lambda record: None,
            EventLog(),
            SimpleNamespace(),  # type: ignore[arg-type]
        )
        self.sent: list[Limit] = []
        self.memory = WorkerMemory()
        self.worker: Any = SimpleNamespace(
            memory=self.memory, ended=asyncio.Event(), send=self.sent.append, followers=None
        )
        condition: Any = SimpleNamespace(state=State.READY, handle=print, progress=print)
        use = SimpleNamespace(last=0.0, keep_alive_s=None)
        traffic: Any = SimpleNamespace(
            queue=SimpleNamespace(highest_priority=None), busy=True, use=use
        )
        model = Model("demo", "/demo", ModelSettings(path="/demo"))
        self.model_memory = ModelMemory(model, condition, traffic, self.scheduler, lambda: True)
        self.scheduler.register([self.model_memory])
        admission = self.scheduler.admission
        admission.ask("demo", floor, 0, 0.0)
        admission.decide(0.0)
        admission.ready("demo", 0.0)
        self.model_memory.granted_bytes = self.memory.granted_bytes = floor
        self.model_memory.bound_to_send()
        self.memory.loaded(8 * GB, MlxMemory(active_bytes=8 * GB, cache_bytes=2 * GB))
        self.memory.tell_beside()

    def need(self, used: int, wanted: int) -> None:
        limit = self.sent[-1].limit_bytes if self.sent else 16 * GB
        self.memory.keeps_to(limit)
        self.model_memory.record_need(self.worker, Need(limit, used, wanted, used, 1, 0))

    async def read(self, held: int, times: int = 1) -> None:
        for _ in range(times):
            footprint = Footprint(held, held)
            reading = self.memory.record_footprint(
                footprint, loaded=True, obeyed_bytes=self.memory.obeyed_bytes
            )
            assert reading is not None
            self.model_memory.record(self.worker, reading)
            # The decision comes with the loop's next turn.
            await asyncio.sleep(0)
            await asyncio.sleep(0)


async def test_bytes_beside_the_account_are_sent_once_with_a_higher_limit(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.need(used=15 * GB, wanted=16 * GB)
    assert world.sent == []
    await world.read(10 * GB, times=5)
    assert world.sent == [], "nothing differs from what it knows"
    await world.read(13 * GB, times=2)
    assert world.sent == [], "two readings of five prove nothing"
    await world.read(13 * GB)
    (limit,) = world.sent
    assert (limit.beside_bytes, limit.limit_bytes) == (3 * GB, 19 * GB)
    await world.read(13 * GB, times=5)
    assert len(world.sent) == 1
    await world.scheduler.close()


async def test_bytes_beside_the_account_are_sent_without_room_too(tmp_path: Path) -> None:
    world = World(tmp_path, budget=16 * GB)
    world.need(used=15 * GB, wanted=16 * GB)
    await world.read(13 * GB, times=6)
    (limit,) = world.sent
    assert (limit.beside_bytes, limit.limit_bytes) == (3 * GB, 16 * GB)
    await world.scheduler.close()


async def test_limit_before_the_first_need_is_sent_with_that_need(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.read(10 * GB)
    world.model_memory.granted_bytes = 18 * GB
    await world.read(10 * GB)
    assert world.sent == [], "it is not known to listen yet"
    world.need(used=15 * GB, wanted=16 * GB)
    assert [limit.limit_bytes for limit in world.sent] == [18 * GB]
    world.need(used=15 * GB, wanted=16 * GB)
    assert len(world.sent) == 1
    await world.scheduler.close()


async def test_ended_worker_is_sent_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.need(used=15 * GB, wanted=16 * GB)
    world.worker.ended.set()
    world.model_memory.set_limit(20 * GB)
    world.model_memory.send_limit()
    assert world.sent == []
    await world.scheduler.close()


async def test_bound_is_sent_when_it_has_changed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.need(used=15 * GB, wanted=16 * GB)
    world.scheduler.configure(MemoryLimits(30 * GB, 1.0, 0, 4096))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (limit,) = world.sent
    assert limit.bound is not None
    assert limit.bound.bytes == 30 * GB
    await world.scheduler.close()
