"""A load, from the first request to the messages of its worker."""

from __future__ import annotations

from pathlib import Path

from gateway.models.lifecycle import ModelEvent, State
from gateway.system.clock import until_set
from protocol.life import Load
from protocol.requests import Generate
from tests.gateway.models.supervisor_world import CRASHED, ModelWorld


async def test_a_load_enters_the_condition_once_a_state(tmp_path: Path) -> None:
    world = ModelWorld(tmp_path, preload=False)
    for name in ("first", "second"):
        world.request(name)
    world.admit()
    world.request("third")
    world.say_hello()
    world.request("fourth")
    assert await until_set(world.worker.heard, 30.0)
    world.say_ready()
    world.request("fifth")
    assert world.entries == [
        (ModelEvent.DEMAND, State.UNLOADED, State.WAITING),
        (ModelEvent.ADMITTED, State.WAITING, State.STARTING),
        (ModelEvent.HELLO, State.STARTING, State.LOADING),
        (ModelEvent.LOADED, State.LOADING, State.READY),
    ]
    assert world.nested == 0
    assert [type(message) for message in world.worker.sent] == [Load, *5 * [Generate]]


async def test_a_request_that_comes_while_its_worker_ends_is_an_event(tmp_path: Path) -> None:
    world = ModelWorld(tmp_path, preload=False)
    world.request("first")
    world.come_up()
    world.supervisor.unload(hold=True, force=True)
    late = world.request("late")
    assert late.over
    world.worker.ends(CRASHED)
    assert world.state is State.HELD
    assert world.request("later").over
