"""Numbers that go wrong unseen: in weights, in cached prompts, in one row of eight."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import after_import, in_engine_step, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import Stream, open_stream

BLOCK = 64
ROWS = 8
TOKENS = 120
INVALID = "model_output_invalid"
KINDS = ("a weight", "a block in memory", "a block on disk", "one row of eight")


def _site(folder: Path) -> str:
    """The file `fault` names what goes wrong with the next step, and a number that says where.
    While there is a file `writes`, each second block goes to disk with a number that isn't one.
    """
    return (
        in_engine_step(
            f"""
fault = {str(folder / "fault")!r}
if os.path.exists(fault):
    import random
    import mlx.core as mx
    from mlx.utils import tree_flatten
    kind, number = open(fault).read().split("|")
    draws = random.Random(number)
    cache, done = self._keeper.cache, False
    if kind == "a weight":
        floats = [array for _, array in tree_flatten(self._model.parameters())
                  if mx.issubdtype(array.dtype, mx.floating)]
        draws.choice(floats)[...] = mx.nan
        done = True
    if kind == "a block in memory":
        # The last token is always computed, so the last block isn't looked at.
        paths = [sequence.path.keys[:-1] for sequence in self._waiting]
        keys = [key for path in paths for key in path if key in cache._blocks]
        if keys:
            draws.choice(cache._blocks.get(draws.choice(keys)).block.arrays)[..., :1, :] = mx.nan
            done = True
    if kind == "a block on disk":
        cache._let_go()
        done = True
    if kind == "one row of eight":
        for batch in self._batches:
            for group in batch._generator._decoding._groups:
                if len(group) > 1:
                    place, leaf = draws.randrange(len(group)), draws.choice(group.leaves)
                    leaf.keys[place, :, 0] = mx.nan
                    done = True
    if done:
        os.unlink(fault)
"""
        )
        + after_import(
            "worker.prompt_cache.cache",
            f"""
            import os, dataclasses
            import mlx.core as mx
            original, count = module.Payload, [0]
            def payload(block):
                count[0] += 1
                if count[0] % 2 and os.path.exists({str(folder / "writes")!r}):
                    arrays = [mx.array(array) for array in block.arrays]
                    arrays[0][..., :1, :] = mx.nan
                    block = dataclasses.replace(block, arrays=tuple(arrays))
                return original(block)
            module.Payload = payload
            """,
        )
        + after_import(
            "worker.prompt_cache.speeds",
            "module.MeasuredSpeeds.worth_reading = lambda self, bytes_, tokens: tokens > 0",
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbers")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[Gateway]:
    state = folder / "state"
    environment = sitecustomize(folder / "site", _site(folder))
    running = Gateway("--spare", "1", "--state-dir", str(state), environment=environment)
    running.state_dir = state
    running.load()
    yield running
    assert running.stop() == 0, running.log


def _complete(gateway: Gateway, prompt: list[int]) -> tuple[str, dict[str, Any] | None]:
    """The text and the error."""
    body = {"model": "demo", "prompt": prompt, "max_tokens": 24, "temperature": 0}
    answer = gateway.client.post("/v1/completions", json=body).json()
    return (answer["choices"][0]["text"] if "choices" in answer else ""), answer.get("error")


def _stored(gateway: Gateway) -> int:
    return sum(len(path.name) == 32 for path in (gateway.state_dir / "prompts").rglob("*"))


def _rows(gateway: Gateway) -> list[Stream]:
    return [
        open_stream(
            gateway,
            f"Tell me story number {index}, and begin with the ship.",
            max_tokens=TOKENS + 10 * index,
            ignore_eos=True,
            seed=index,
            temperature=0.0 if index % 2 else 1.0,
            stream_options={"include_usage": True},
        )
        for index in range(ROWS)
    ]


def _is_right(stream: Stream, whole: Stream) -> bool:
    """Whether a stream has the undisturbed text, or the named error after its beginning."""
    if stream.error is not None:
        return stream.error["code"] == INVALID and whole.text.startswith(stream.text)
    return stream.outcome == whole.outcome


class World:
    """A gateway, whose numbers go wrong one after another."""

    def __init__(self, gateway: Gateway, folder: Path, seed: int | str) -> None:
        self.gateway = gateway
        self.draws = random.Random(seed)
        self.errors = 0
        self._fault, self._writes = folder / "fault", folder / "writes"
        self._whole = [stream.join() for stream in _rows(gateway)]

    def plant(self, kind: str) -> None:
        invalid, quarantined = self._invalid, len(self._quarantined)
        if kind in ("a weight", "one row of eight"):
            self._among_eight(kind)
        else:
            self._in_the_cache(kind)
        assert not self._fault.exists(), "the fault was never planted"
        assert self._invalid > invalid or len(self._quarantined) > quarantined, kind
        if kind == "a weight":
            self.gateway.order("restart", wait=True).raise_for_status()

    @property
    def _invalid(self) -> int:
        return int(self.gateway.model()["invalid_outputs"])

    @property
    def _quarantined(self) -> list[dict[str, Any]]:
        """The proof of cached blocks may find a wrong one before a step does."""
        return self.gateway.events("cache_quarantined")

    def _break(self, kind: str) -> None:
        whole = self._fault.with_name("whole")
        whole.write_text(f"{kind}|{self.draws.random()}")
        whole.rename(self._fault)

    def _among_eight(self, kind: str) -> None:
        streams = _rows(self.gateway)
        eventually(lambda: all(stream.text for stream in streams), START_S)
        self._break(kind)
        for stream, whole in zip(streams, self._whole, strict=True):
            assert _is_right(stream.join(), whole), (kind, stream.text, stream.error)
            self.errors += stream.error is not None
            assert kind == "a weight" or stream.error is None

    def _in_the_cache(self, kind: str) -> None:
        prompt = [self.draws.randrange(10, 600) for _ in range(6 * BLOCK)]
        before = _stored(self.gateway)
        if kind == "a block on disk":
            self._writes.touch()
        whole, error = _complete(self.gateway, prompt)
        assert error is None
        eventually(lambda: _stored(self.gateway) >= before + 6, START_S)
        self._writes.unlink(missing_ok=True)
        self._break(kind)
        assert _complete(self.gateway, prompt) == (whole, None), kind


@pytest.mark.parametrize("kind", KINDS)
def test_no_wrong_number_becomes_an_answer(
    kind: str, gateway: Gateway, folder: Path, seed: int
) -> None:
    # Another kind's prompt would be stored already.
    world = World(gateway, folder, f"{seed} {kind}")
    world.plant(kind)
    assert world.errors == 0
    assert gateway.model()["state"] == "ready"


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_hundred_wrong_numbers(
    gateway: Gateway, folder: Path, seed: int, tell: Callable[..., None]
) -> None:
    world = World(gateway, folder, seed)
    for _ in range(25):
        for kind in KINDS:
            world.plant(kind)
    tell(faults=100, invalid_steps=gateway.model()["invalid_outputs"], errors=world.errors)
