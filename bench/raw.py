"""mlx-lm without a server, in processes of its own: as fast as Python can call it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from bench.conversation import Turn
from bench.prompts import Prompt, SamplingSettings, settings_of
from bench.results import RAW, FailedError, Generation

_START_S: Final = 120.0


class MlxLmProcess:
    """A process that holds a model, so that the process that measures holds no MLX. It imports
    mlx-lm, and then answers one order after the other.
    """

    def __init__(self, serve: Callable[[str, Connection], None], model: Path) -> None:
        # Not forked: MLX's threads don't survive that.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(str(model), theirs), daemon=True)
        self._process.start()
        theirs.close()

    def processes(self) -> dict[str, int]:
        assert self._process.pid is not None
        return {RAW: self._process.pid}

    def send(self, order: Any) -> None:
        self._connection.send(order)

    def answer(self, order: Any) -> Any:
        """Send an order, and return the answer to it.

        Raises:
            FailedError: the process is gone.
        """
        try:
            self._connection.send(order)
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise FailedError("The mlx-lm process ended; its traceback is above.") from error

    def wait_for_start(self) -> None:
        """Wait until the process has sent None, as it does once its imports are done."""
        if not self._connection.poll(_START_S):
            raise FailedError(f"The mlx-lm process did not start within {_START_S:g} s.")
        self._connection.recv()

    def stop(self) -> None:
        self._connection.close()
        self._process.join()


class Raw(MlxLmProcess):
    """mlx-lm's BatchGenerator."""

    name = RAW

    def __init__(self, model: Path) -> None:
        super().__init__(_generate_batches, model)

    def generate(self, prompts: Sequence[Prompt], tokens: int) -> Generation:
        """Generate the answers to all prompts at once, each of `tokens` tokens.

        Raises:
            FailedError: the process is gone, or a stream didn't make `tokens` tokens.
        """
        order = list(prompts), tokens, list(settings_of(prompts))
        generation: Generation = self.answer(order)
        if generation.tokens != tokens * len(prompts):
            raise FailedError(f"{RAW} made {generation.tokens} tokens with {len(prompts)} streams.")
        return generation


class Kept(MlxLmProcess):
    """mlx-lm's loop, which keeps the cache of its conversation from turn to turn. A server that
    computes the same can't be faster.
    """

    name = "mlx-lm's loop, its cache kept"

    def __init__(self, model: Path) -> None:
        super().__init__(_converse, model)

    def restart(self) -> None:
        """Forget the conversation."""
        self.send(None)

    def ask(self, text: str, tokens: int) -> Turn:
        """Add to the conversation, and generate so many tokens.

        Raises:
            FailedError: the process is gone.
        """
        turn: Turn = self.answer((text, tokens))
        return turn


class WeightsReader(MlxLmProcess):
    """Reads a model's weights by mlx-lm, in a process that has done its imports, as a spare worker
    has. The time of the first reading includes the first use of the device.
    """

    def __init__(self, model: Path) -> None:
        super().__init__(_read_weights, model)
        self.wait_for_start()

    def read_s(self) -> float:
        seconds: float = self.answer(None)
        return seconds


def _generate_batches(model: str, connection: Connection) -> None:
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.generate import BatchGenerator

    if mx.cuda.is_available():
        # A server shares the card. Else buffers would fill it: with 256 streams 130 of 140 GB.
        mx.set_memory_limit(mx.get_memory_limit() // 2)
    loaded, tokenizer = load(model)[:2]
    while True:
        try:
            prompts, tokens, settings = connection.recv()
        except EOFError:
            return
        token_ids = [
            prompt if isinstance(prompt, list) else tokenizer.encode(prompt) for prompt in prompts
        ]
        # The default is 32 rows that decode, as in mlx_lm.server; more streams are rows at once.
        generator = BatchGenerator(loaded, completion_batch_size=max(32, len(prompts)))
        began = time.perf_counter()
        generator.insert(
            token_ids,
            max_tokens=[tokens] * len(prompts),
            samplers=[_sampler(setting) for setting in settings],
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
        generator.close()
        mx.clear_cache()
        connection.send(Generation(made, now - began, list(first_token_s.values())))


def _sampler(settings: SamplingSettings) -> Any:
    """mlx-lm's sampler of a row with settings of its own."""
    from mlx_lm.sample_utils import make_sampler

    if settings.temperature == 0.0:
        return None
    return make_sampler(
        temp=settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        min_p=settings.min_p,
    )


def _converse(model: str, connection: Connection) -> None:
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.generate import generate_step
    from mlx_lm.models.cache import make_prompt_cache

    loaded, tokenizer = load(model)[:2]
    caches = make_prompt_cache(loaded)
    # The last token that was made, which the cache has not seen.
    unseen: list[int] = []
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        if order is None:
            caches, unseen = make_prompt_cache(loaded), []
            continue
        text, tokens = order
        began = time.perf_counter()
        prompt = unseen + tokenizer.encode(text, add_special_tokens=not unseen)
        made: list[int] = []
        first_s = 0.0
        for token, _ in generate_step(
            mx.array(prompt), loaded, max_tokens=tokens, prompt_cache=caches
        ):
            made.append(int(token))
            first_s = first_s or time.perf_counter() - began
        unseen = made[-1:]
        connection.send(Turn(first_s, time.perf_counter() - began, tokenizer.decode(made)))


def _read_weights(model: str, connection: Connection) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    connection.send(None)
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        began = time.perf_counter()
        loaded, _ = load_model(Path(model))
        seconds = time.perf_counter() - began
        del loaded
        mx.clear_cache()
        connection.send(seconds)
