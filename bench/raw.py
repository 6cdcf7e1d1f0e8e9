"""The first subject: mlx-lm's BatchGenerator alone in a process, as fast as Python can call it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.load import Prompt
from bench.results import RAW, FailedError, Generation
from bench.settings import SamplingSettings, settings_of


class Raw:
    """Talks to the process that holds the model."""

    name = RAW

    def __init__(self, model: Path) -> None:
        # Not forked: MLX's threads don't survive that.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(str(model), theirs), daemon=True)
        self._process.start()
        theirs.close()

    def processes(self) -> dict[str, int]:
        assert self._process.pid is not None
        return {RAW: self._process.pid}

    def generate(self, prompts: Sequence[Prompt], tokens: int) -> Generation:
        """Generate for all prompts at once.

        Raises:
            FailedError: the process is gone, or a stream didn't make `tokens` tokens.
        """
        try:
            self._connection.send((list(prompts), tokens, list(settings_of(prompts))))
            generation: Generation = self._connection.recv()
        except (EOFError, OSError) as error:
            raise FailedError("The mlx-lm process ended; its traceback is above.") from error
        if generation.tokens != tokens * len(prompts):
            raise FailedError(f"{RAW} made {generation.tokens} tokens with {len(prompts)} streams.")
        return generation

    def stop(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(model: str, connection: Connection) -> None:
    # Here, not above: only this process is to hold MLX.
    from mlx_lm import load
    from mlx_lm.generate import BatchGenerator

    loaded, tokenizer = load(model)[:2]
    while True:
        try:
            prompts, tokens, settings = connection.recv()
        except EOFError:
            return
        token_ids = [each if isinstance(each, list) else tokenizer.encode(each) for each in prompts]
        # Default batch sizes, 32 rows that decode and 8 in prefill, are those of both servers.
        generator = BatchGenerator(loaded)
        began = time.perf_counter()
        generator.insert(
            token_ids,
            max_tokens=[tokens] * len(prompts),
            samplers=[_sampler(each) for each in settings],
        )
        first_token_s: dict[int, float] = {}
        made = finished = 0
        while finished < len(prompts):
            responses = generator.next()[1]
            now = time.perf_counter()
            for response in responses:
                first_token_s.setdefault(response.uid, now - began)
                finished += response.finish_reason is not None
            made += len(responses)
        connection.send(Generation(made, now - began, list(first_token_s.values())))
        generator.close()


def _sampler(settings: SamplingSettings) -> Any:
    """What mlx-lm has for a row with settings of its own: a sampler each."""
    from mlx_lm.sample_utils import make_sampler

    if settings.temperature == 0.0:
        return None
    return make_sampler(
        temp=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
    )
