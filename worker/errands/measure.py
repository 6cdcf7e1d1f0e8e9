"""How fast a model generates in this process, to be compared with a served one."""

from __future__ import annotations

import sys
import time

from protocol.errands import Measure, Measured
from worker.engines.batched import BatchedEngine
from worker.engines.room import Room, measure
from worker.engines.sequence import Sequence
from worker.errands.errand import Errand
from worker.load.loading import LoadedModel, load
from worker.system.errors import ModelError


def run(errand: Errand) -> None:
    """The work of a worker with one request, without anything around it."""
    errand.begin()
    asked = errand.read(Measure)
    try:
        loaded = load(asked.source, lambda _done, _total: None, lambda: False)
    except ModelError as error:
        sys.exit(error.reason)
    errand.answer(Measured(min(_generate(loaded, asked) for _ in range(asked.times))))


def _generate(loaded: LoadedModel, asked: Measure) -> float:
    """Seconds."""
    engine = BatchedEngine(loaded.model, (), 1, Room(measure(loaded.model)))
    prompt_ids = list(loaded.tokenizer.encode(asked.prompt))
    engine.add(Sequence("measured", prompt_ids, asked.tokens, sampling=None, ignore_eos=True))
    made, began = 0, time.monotonic()
    while made < asked.tokens:
        new = len(engine.step())
        if made == 0:
            # The first comes with the prompt, and with what is done once.
            began = time.monotonic()
        made += new
    seconds = time.monotonic() - began
    engine.close()
    return seconds
