"""What is known of the memory of a worker."""

from __future__ import annotations

from gateway.system.memory_reading import Footprint
from gateway.workers.report import WorkerMemory
from protocol.life import MlxMemory

HALF, WHOLE = Footprint(80, 80), Footprint(160, 160)


def test_a_reading_that_began_before_its_model_was_there_is_not_taken_for_it() -> None:
    memory = WorkerMemory()
    began_loaded = memory.is_loaded
    memory.loaded(100, MlxMemory(active_bytes=100))
    memory.record_footprint(HALF, loaded=began_loaded, obeyed_bytes=0)
    assert memory.held_bytes is None
    memory.record_footprint(WHOLE, loaded=memory.is_loaded, obeyed_bytes=0)
    assert memory.held_bytes == 160


def test_reclaimed_memory_shows_in_later_readings() -> None:
    memory = WorkerMemory()
    assert not memory.keeps_to(80)
    assert memory.keeps_to(50), "it has given something back"
    assert not memory.keeps_to(60)
    early = memory.record_footprint(HALF, loaded=memory.is_loaded, obeyed_bytes=80)
    late = memory.record_footprint(HALF, loaded=memory.is_loaded, obeyed_bytes=memory.obeyed_bytes)
    assert early is not None
    assert late is not None
    assert (early.limit_bytes, late.limit_bytes) == (80, 60)
