"""One request that kills every worker, among eight that have done nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.faults import after_import, sitecustomize
from tests.support.gateway import START_S, Gateway, eventually
from tests.support.streams import Stream, open_stream

pytestmark = pytest.mark.slow

POISON = "What do you know about the poisonous prompt?"
INNOCENT = "Tell me a story."

# Whoever has this prompt in its batch for three steps is gone. It is known by its tokens, since
# that is all that a second worker gets.
DEADLY = after_import(
    "worker.runtime.prompts",
    f"""
        original = module.prepare
        def prepare(generate, loaded, *arguments, **named):
            module.poison = loaded.tokenizer.encode({POISON!r}, add_special_tokens=False)[2:-2]
            return original(generate, loaded, *arguments, **named)
        module.prepare = prepare
        """,
) + after_import(
    "worker.engines.batched_engine",
    """
        import os, sys
        add, step = module.BatchedEngine.add, module.BatchedEngine.step
        state = {"steps": None}
        def poisoned_add(self, sequence):
            # None before the first prompt: the engine warms up.
            poison = getattr(sys.modules["worker.runtime.prompts"], "poison", None) or [None]
            ids = sequence.token_ids
            if any(ids[at : at + len(poison)] == poison for at in range(len(ids))):
                state["steps"] = 0
            add(self, sequence)
        def poisoned_step(self):
            if state["steps"] is not None:
                state["steps"] += 1
                if state["steps"] > 3:
                    os.abort()
            return step(self)
        module.BatchedEngine.add = poisoned_add
        module.BatchedEngine.step = poisoned_step
        """,
)


def _innocents(gateway: Gateway) -> list[Stream]:
    return [
        open_stream(
            gateway,
            INNOCENT,
            max_tokens=90 + 10 * index,
            ignore_eos=True,
            seed=index,
            temperature=0.0 if index % 2 else 1.0,
            stream_options={"include_usage": True},
        )
        for index in range(8)
    ]


def test_the_poisonous_one_pays_alone(
    start_gateway: Callable[..., Gateway], tmp_path: Path, tell: Callable[..., None]
) -> None:
    gateway = start_gateway("--spare", "1", environment=sitecustomize(tmp_path / "site", DEADLY))
    gateway.load()
    undisturbed = [innocent.join().outcome for innocent in _innocents(gateway)]
    began = time.monotonic()
    innocents = _innocents(gateway)
    eventually(lambda: all(stream.text for stream in innocents), START_S)
    poison = gateway.chat(POISON)
    assert [innocent.join().outcome for innocent in innocents] == undisturbed
    seconds = time.monotonic() - began
    assert (poison.status_code, poison.json()["error"]["code"]) == (500, "worker_crashed")
    restarts = gateway.model()["restarts"]
    assert restarts == 2, "the death among the eight, and the one that proved who it was"

    twin = gateway.chat(POISON)
    assert (twin.status_code, twin.json()["error"]["code"]) == (500, "worker_crashed")
    assert twin.headers["x-should-retry"] == "false"
    assert "is kept out" in twin.json()["error"]["message"]
    assert gateway.say("Hello")
    assert gateway.model()["restarts"] == restarts, "the twin was never run"
    tell(innocents=len(innocents), worker_deaths=restarts, seconds=f"{seconds:.1f}")


def test_many_poisons_are_no_fault_of_the_model(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    """More at once than the policy would bear, each in words of its own."""
    gateway = start_gateway(
        "--spare",
        "1",
        config="[workers]\nrestart_limit = 2\nbackoff_limit = 0\n",
        environment=sitecustomize(tmp_path / "site", DEADLY),
    )
    whole = gateway.say(INNOCENT, max_tokens=100)
    innocent = open_stream(gateway, INNOCENT, max_tokens=100)
    with ThreadPoolExecutor(4) as pool:
        poisons = list(pool.map(lambda n: gateway.chat(POISON, seed=n), range(4)))
    assert {poison.json()["error"]["code"] for poison in poisons} == {"worker_crashed"}
    assert innocent.join().text == whole
    assert gateway.model()["state"] != "failed"
