"""mlx-lm's loop in a process of its own, with a cache that is never lost: what no server's turns
can be faster than, as long as they compute the same.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

from bench.conversation import Turn
from bench.results import FailedError


class Kept:
    """Talks to the process that holds the model, and the cache of one conversation."""

    name = "mlx-lm's loop, its cache kept"

    def __init__(self, model: Path) -> None:
        # Not forked: MLX's threads don't survive that.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(str(model), theirs), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self) -> None:
        """Forget the conversation."""
        self._connection.send(None)

    def ask(self, text: str, tokens: int) -> Turn:
        """Add to the conversation, and generate so many tokens.

        Raises:
            FailedError: the process is gone.
        """
        try:
            self._connection.send((text, tokens))
            turn: Turn = self._connection.recv()
        except (EOFError, OSError) as error:
            raise FailedError("The mlx-lm process ended; its traceback is above.") from error
        return turn

    def stop(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(model: str, connection: Connection) -> None:
    # Here, not above: only this process is to hold MLX.
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
