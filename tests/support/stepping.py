"""Steps of an engine as the worker takes them, in one thread."""

from __future__ import annotations

from worker.engines.sequence import Engine, Token


def step(engine: Engine) -> list[Token]:
    """Its tokens, once it has kept of its prompts what there is to keep."""
    tokens = engine.step()
    engine.store_blocks()
    return tokens
