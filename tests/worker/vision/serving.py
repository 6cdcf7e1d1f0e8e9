"""Models that look at pictures, as a worker serves them."""

from __future__ import annotations

from typing import Any

from protocol.message_base import pack
from protocol.requests import ChatMessage, ChatPrompt, Generate, Picture, Sampling
from worker.engines.batched_engine import BatchedEngine
from worker.engines.decoding import Caches
from worker.engines.room import CacheRoom, CacheSizes, Context
from worker.engines.sequence import Sequence, Token
from worker.engines.sequential import SequentialEngine
from worker.load.loading import LoadedModel
from worker.prompt_cache.blocks import Cutter
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import PreparedRequest, prepare

CONTEXT = Context(4096)
GREEDY = Sampling(seed=1, temperature=0.0)


def user(text: str, *files: bytes) -> ChatMessage:
    """A message of the user, with its pictures behind the first three characters."""
    pictures = tuple(Picture(file, 3, f"picture {index}") for index, file in enumerate(files))
    return ChatMessage("user", text, pictures=pictures)


def ask(
    name: str,
    *messages: ChatMessage,
    tokens: int,
    delivered: tuple[int, ...] = (),
    sampling: Sampling = GREEDY,
    **more: Any,
) -> Generate:
    return Generate(
        request_id=name,
        prompt=ChatPrompt(messages),
        sampling=sampling,
        max_tokens=tokens,
        ignore_eos=True,
        delivered=pack(delivered),
        **more,
    )


class Serving:
    """A model, its prompt cache, and an engine of either kind."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        batched: bool = True,
        cached: bool = False,
        guesses: bool = True,
        room: CacheRoom | None = None,
        kv_bits: int | None = None,
    ) -> None:
        self.model = model
        caches = Caches(model.model, kv_bits=kv_bits)
        cutter = Cutter(caches.run, caches.make)
        self.paths = Paths(b"", None, needs_snapshots=cutter.needs_snapshots)
        self.cache = PromptCache(cutter, None) if cached else None
        room = CacheRoom(CacheSizes(0, 0, 1.0)) if room is None else room
        self.engine: BatchedEngine | SequentialEngine
        if batched:
            self.engine = BatchedEngine(
                caches.model, (), 8, room, self.cache, guesses=guesses, vision=caches.model
            )
        else:
            self.engine = SequentialEngine(
                model.model, (), room, caches, self.cache, make_prompt=model.model.start_prompt
            )

    def prepare(self, generate: Generate) -> PreparedRequest:
        prepared = prepare(generate, self.model, CONTEXT, self.paths)
        assert isinstance(prepared, PreparedRequest)
        return prepared

    def sequence(self, generate: Generate) -> Sequence:
        return self.prepare(generate).sequence

    def run(self, generate: Generate) -> tuple[list[int], int]:
        """Token ids, and how many of the prompt came from the cache."""
        tokens = self.run_all([generate])[generate.request_id]
        return [token.token_id for token in tokens], tokens[0].cached_tokens

    def answer(self, generate: Generate) -> list[int]:
        return self.run(generate)[0]

    def run_all(self, asked: list[Generate], every: int = 0) -> dict[str, list[Token]]:
        """The tokens of each request. Another one comes with every so many steps; 0: all come at
        once.
        """
        made: dict[str, list[Token]] = {request.request_id: [] for request in asked}
        coming = [self.sequence(request) for request in asked]
        steps = 0
        while coming or self.engine.active + self.engine.waiting:
            while coming and (not every or steps % every == 0):
                self.engine.add(coming.pop(0))
                if every:
                    break
            for token in self.engine.step():
                made[token.request_id].append(token)
            self.engine.store_blocks()
            assert self.engine.remove_broken() == []
            steps += 1
        return made
