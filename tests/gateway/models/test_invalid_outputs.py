"""An answer whose logits aren't valid is tried in a fresh, plain worker, and then refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.model import Model
from gateway.config.model_settings import ModelSettings
from gateway.memory.weights import options_of
from gateway.models.lifecycle import State
from gateway.requests.request import Request
from gateway.system.clock import until_set
from gateway.system.refusal import Refusal
from protocol.answers import Delta, Output, OutputInvalid, Rendered, Text
from protocol.life import Load
from protocol.message_base import pack
from protocol.requests import Generate
from tests.gateway.models.supervisor_world import STOPPED, ModelWorld


@pytest.fixture
async def world(tmp_path: Path) -> ModelWorld:
    return ModelWorld(tmp_path, preload=False)


def _spoil(world: ModelWorld, request: Request, *, goes_on: bool) -> None:
    world.worker.says(
        OutputInvalid(request_id=request.progress.wire_id, goes_on=goes_on, quarantined_blocks=2)
    )


def _deliver(world: ModelWorld, request: Request, token_id: int) -> None:
    wire_id = request.progress.wire_id
    world.worker.says(Rendered(request_id=wire_id, token_ids=pack([1, 2]), last=True))
    world.worker.says(Output(step=1, deltas=(Delta(wire_id, (token_id,), (Text("a"),)),)))


def _sent(world: ModelWorld) -> list[Generate]:
    return [message for message in world.worker.sent if isinstance(message, Generate)]


async def _refusal(request: Request) -> Refusal:
    """The error of a request without any text."""
    with pytest.raises(Refusal) as refused:
        await request.next_piece()
    return refused.value


async def test_the_worker_that_goes_on_keeps_the_request(world: ModelWorld) -> None:
    request = world.request("a")
    world.come_up()
    _spoil(world, request, goes_on=True)
    assert world.state is State.READY
    assert world.supervisor.invalid_outputs.count == 1
    assert not world.supervisor.invalid_outputs.plain
    (event,) = world.emitted("output_invalid")
    assert event["next_try"] == "in the same worker, without cached blocks"
    assert event["quarantined_blocks"] == 2


async def test_all_requests_go_on_in_a_plain_worker_and_the_faulty_one_cold(
    world: ModelWorld,
) -> None:
    faulty, other = world.request("a"), world.request("b")
    world.come_up()
    _deliver(world, other, 7)
    _spoil(world, faulty, goes_on=True)
    _spoil(world, faulty, goes_on=False)
    assert world.state is State.STOPPING
    assert not world.supervisor.invalid_outputs.plain, "that worker wasn't"
    world.worker.ends(STOPPED)
    world.come_up()
    assert world.supervisor.invalid_outputs.plain
    sent = {message.request_id.partition(".")[0]: message for message in _sent(world)}
    assert {name: message.cold for name, message in sent.items()} == {"a": True, "b": False}
    assert sent["b"].delivered == pack([7])
    recovery = world.supervisor.recovery
    assert recovery.restarts == 0, "nothing has died"
    assert recovery.restarts_by["invalid output"] == 1


async def test_the_plain_worker_loads_without_quantized_caches_and_guesses(
    world: ModelWorld,
) -> None:
    request = world.request("a")
    world.come_up()
    _spoil(world, request, goes_on=False)
    world.worker.ends(STOPPED)
    world.admit()
    world.say_hello()
    assert await until_set(world.worker.heard, 30.0)
    (load,) = (message for message in world.worker.sent if isinstance(message, Load))
    assert (load.kv_bits, load.guesses, load.draft_path) == (None, False, None)


async def test_the_third_time_the_request_ends_with_an_error_of_its_own(world: ModelWorld) -> None:
    faulty, other = world.request("a"), world.request("b")
    world.come_up()
    _spoil(world, faulty, goes_on=False)
    world.worker.ends(STOPPED)
    world.come_up()
    _spoil(world, faulty, goes_on=False)
    refusal = await _refusal(faulty)
    assert (refusal.code, refusal.status, refusal.lasting) == ("model_output_invalid", 500, True)
    assert "again in a fresh worker, with unquantized caches" in refusal.message
    assert "`bulkhead check m`" in refusal.message
    assert not other.over
    assert world.state is State.READY


async def test_further_requests_replace_no_plain_worker(world: ModelWorld) -> None:
    request = world.request("a")
    world.come_up()
    _spoil(world, request, goes_on=False)
    world.worker.ends(STOPPED)
    world.come_up()
    for name in ("b", "c"):
        request = world.request(name)
        _spoil(world, request, goes_on=True)
        _spoil(world, request, goes_on=False)
        assert "in a worker that was fresh" in (await _refusal(request)).message
    assert world.state is State.READY
    assert len(world.workers.started) == 2


async def test_the_next_load_is_an_ordinary_one(world: ModelWorld) -> None:
    request = world.request("a")
    world.come_up()
    _spoil(world, request, goes_on=False)
    world.worker.ends(STOPPED)
    world.come_up()
    world.crash()
    assert world.state is State.WAITING, "the request waits for another worker"
    assert not world.supervisor.invalid_outputs.plain


def test_a_plain_model_is_estimated_without_quantized_caches_and_a_draft_model() -> None:
    settings = ModelSettings(path="/m", kv_bits=4, draft_model="/d", context_tokens=5000)
    model = Model("m", "/m", settings, draft="/d")
    options = options_of(model.plain)
    assert (options.kv_bits, options.draft) == (None, None)
    assert model.plain.settings.context_tokens == 5000
    assert options_of(model).kv_bits == 4


async def test_a_client_that_left_starts_no_worker(world: ModelWorld) -> None:
    request = world.request("a")
    world.come_up()
    world.supervisor.traffic.cancel(request)
    _spoil(world, request, goes_on=False)
    assert world.state is State.READY
    assert world.supervisor.invalid_outputs.count == 1


async def test_a_worker_that_drains_ends_by_itself(world: ModelWorld) -> None:
    request = world.request("a")
    world.come_up()
    world.supervisor.unload(hold=False, force=False)
    _spoil(world, request, goes_on=False)
    assert world.state is State.DRAINING
    world.supervisor.tick(0.0, 1e9)
    world.worker.ends(STOPPED)
    assert world.state is State.WAITING
    world.come_up()
    assert world.supervisor.invalid_outputs.plain
