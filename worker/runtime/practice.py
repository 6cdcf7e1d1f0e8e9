"""What a process does on a GPU for the first time is done by a spare worker before it has a model:
the device's context, libraries that choose how to multiply, kernels that are loaded when they are
first used.

Kernels depend on types and on a few sizes, not on the model: those of a small one of the most
common kind are mostly those of the next. On an H100 a load's first evaluations and its first answer
take 0.3 s after that, and 0.7 without (MLX 0.32.4).
"""

from __future__ import annotations

import logging
from typing import Final

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama

from worker.engines.batched import BatchedEngine
from worker.engines.caches import Caches
from worker.engines.room import Room, measure
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.runtime.warm import Warming
from worker.system.memory import released_memory

logger = logging.getLogger("worker")

_VOCABULARY: Final = 1024
_CONTEXT_TOKENS: Final = 1024


def practise() -> None:
    """Answer with a model of random weights, and with the same in 4 bits; nothing stays of them.
    What fails here is left to the load.
    """
    try:
        with released_memory():
            _answer_twice()
    except Exception:
        logger.debug("A spare worker could not practise", exc_info=True)


def _answer_twice() -> None:
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=512,
            num_hidden_layers=1,
            intermediate_size=1024,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=128,
            rms_norm_eps=1e-6,
            vocab_size=_VOCABULARY,
        )
    )
    model.set_dtype(mx.bfloat16)
    _answer(model)
    nn.quantize(model, group_size=64, bits=4)
    _answer(model)


def _answer(model: llama.Model) -> None:
    """As in a load for which somebody waits."""
    caches = Caches(model)
    room = Room(measure(caches.run, caches.make))
    prompt_cache = PromptCache(Cutter(caches.run, caches.make), None)
    engine = BatchedEngine(model, (), 1, room, prompt_cache=prompt_cache)
    warming = Warming(engine, prompt_cache, room, _CONTEXT_TOKENS, _VOCABULARY)
    warming.begin(awaited=True)
    engine.close()
