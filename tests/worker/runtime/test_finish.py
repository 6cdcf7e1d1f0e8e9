"""The order to finish is never missed, whenever it comes."""

from __future__ import annotations

import threading

from gateway.config.model_folders import DEMO_FOLDER
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom, CacheSizes, ContextInForce, WorkerLimits
from worker.load.loading import load
from worker.runtime.engine_loop import EngineLoop
from worker.runtime.engine_thread import EngineCommand, EngineThread


class _LateOrder(EngineThread):
    """The order comes after the engine has looked whether there is one."""

    def next_command(self, *, wait: bool, at_most_s: float | None = None) -> EngineCommand | None:
        if not self.should_finish():
            self.finish()
        return super().next_command(wait=wait, at_most_s=at_most_s)


def test_an_order_among_the_commands_that_are_read_at_once() -> None:
    ran = threading.Event()

    def run() -> None:
        loaded = load(str(DEMO_FOLDER), lambda _done, _total: None, lambda: False)
        room = CacheRoom(CacheSizes(0, 0, 1.0), weight_bytes=loaded.weight_bytes)
        engine = BatchedEngine(loaded.model, loaded.eos_token_ids, 4, room)
        limits = WorkerLimits(room)
        EngineLoop(
            _LateOrder(lambda _: None, lambda: None), engine, limits, ContextInForce(4096)
        ).run()
        ran.set()

    threading.Thread(target=run, daemon=True).start()
    assert ran.wait(60)
