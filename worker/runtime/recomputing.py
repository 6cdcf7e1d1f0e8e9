"""Computes parts of prompts anew, to compare them with what the prompt cache has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx

from worker.engines.decoding import Caches
from worker.engines.room import BatchSize, CacheRoom
from worker.engines.sequence import Engine
from worker.engines.sequence import Sequence as EngineSequence
from worker.mlx_lm.cache_values import distances, divergence, values_of
from worker.mlx_lm.generator import stream
from worker.prompt_cache.cache import PromptCache
from worker.prompt_cache.found import FoundPrompt, Piece
from worker.prompt_cache.path import BLOCK_TOKENS, Path, chain, root_key
from worker.prompt_cache.proof_plan import NoiseBounds

# A request that comes waits for one chunk.
CHUNK_TOKENS: Final = 128
# Rounding differs between chunks of unlike lengths.
OTHER_CHUNKS: Final = (96, 37, 512)
# Two roundings of a number differ by some times the distance of neighbouring numbers.
_LEAST_ROUNDINGS: Final = 4.0
_LEAST_DISTANCE: Final = 1e-3
_BESIDE: Final = 3
_MOST_STEPS: Final = 1000


class Computed(NamedTuple):
    """A part of a prompt: its keys, values and states, and the logits of the token behind it."""

    values: list[mx.array]
    logits: mx.array


class Drift(NamedTuple):
    distances: list[float]
    divergence: float


def difference(one: Computed, other: Computed) -> Drift:
    return Drift(distances(one.values, other.values), divergence(one.logits, other.logits))


class Recomputing:
    """Computes pieces of prompts anew. Methods return None if they are interrupted, or if memory
    has no room or no blocks for them.
    """

    def __init__(
        self, engine: Engine, caches: Caches, prompt_cache: PromptCache, room: CacheRoom
    ) -> None:
        self._engine = engine
        self._caches = caches
        self._prompt_cache = prompt_cache
        self._room = room

    def has_room(self, rows: int, tokens: int) -> bool:
        """Whether so many rows fit beside the prompt cache."""
        limit_bytes = self._room.limit_bytes
        needed_bytes = self._room.needed_bytes([BatchSize(rows, tokens)])
        return limit_bytes is None or needed_bytes + self._prompt_cache.bytes_ <= limit_bytes

    def cached(self, found: FoundPrompt, piece: Piece) -> Computed | None:
        """What the cache has of a piece."""
        caches = self._prompt_cache.join(found.path, piece.last)
        return None if caches is None else self._finish(found, piece, caches)

    def anew(
        self,
        found: FoundPrompt,
        piece: Piece,
        chunk_tokens: int,
        is_interrupted: Callable[[], bool],
    ) -> Computed | None:
        """A piece, computed behind the cached blocks before it."""
        if piece.first:
            caches = self._prompt_cache.join(found.path, piece.first)
        else:
            caches = self._caches.make()
        if caches is None:
            return None
        end = piece.last * BLOCK_TOKENS
        for begin in range(piece.first * BLOCK_TOKENS, end, chunk_tokens):
            if is_interrupted():
                return None
            chunk = list(found.token_ids[begin : min(end, begin + chunk_tokens)])
            with stream():
                self._caches.run(mx.array([chunk]), caches)
                mx.eval([cache.state for cache in caches])
        return self._finish(found, piece, caches)

    def _finish(self, found: FoundPrompt, piece: Piece, caches: list[Any]) -> Computed:
        begin, end = piece.first * BLOCK_TOKENS, piece.last * BLOCK_TOKENS
        # The next token changes states, so they are copied before.
        values = [mx.array(value) for value in values_of(caches, begin, end)]
        mx.eval(values)
        with stream():
            logits = self._caches.run(mx.array([[found.token_ids[end]]]), caches)[0, -1]
            mx.eval(logits)
        return Computed(values, logits)

    def in_engine(
        self, found: FoundPrompt, blocks: int, beside: int, is_interrupted: Callable[[], bool]
    ) -> Computed | None:
        """The first blocks of a prompt, as the engine computes and caches them with `beside` other
        prompts.
        """
        length = blocks * BLOCK_TOKENS + 1
        token_ids = list(found.token_ids[:length])
        root = root_key("proof", found.path.root.hex(), str(beside))
        path = Path(root, tuple(chain(root, token_ids)), boundaries=(blocks,))
        sequences = [EngineSequence("proof", token_ids, 1, None, ignore_eos=True, path=path)]
        for number in range(1, beside + 1):
            # Other prompts of other lengths, made of the same tokens.
            other = token_ids[number:] + token_ids[: -number - 1]
            sequences.append(EngineSequence(f"proof {number}", other, 1, None, ignore_eos=True))
        with self._prompt_cache.unnoticed():
            done = self._run(sequences, is_interrupted)
            prompt = FoundPrompt(path, token_ids)
            computed = self.cached(prompt, Piece(0, blocks)) if done else None
            self._prompt_cache.drop(path)
        return computed

    def _run(self, sequences: Sequence[EngineSequence], is_interrupted: Callable[[], bool]) -> bool:
        engine = self._engine
        for sequence in sequences:
            engine.add(sequence)
        for _ in range(_MOST_STEPS):
            if not engine.active + engine.waiting or is_interrupted():
                break
            engine.step()
            engine.store_blocks()
        done = not engine.active + engine.waiting
        engine.remove([sequence.request_id for sequence in sequences])
        # Blocks of the last step are stored now, since they are dropped afterwards.
        engine.store_blocks()
        return done

    def measure_noise(
        self, found: FoundPrompt, blocks: int, is_interrupted: Callable[[], bool]
    ) -> NoiseBounds | None:
        """How much the first blocks of this prompt differ if they are computed in other ways: in
        other chunks, and by the engine, alone and in a batch.
        """
        piece = Piece(0, blocks)
        reference = self.anew(found, piece, CHUNK_TOKENS, is_interrupted)
        if reference is None:
            return None
        bounds = NoiseBounds(_least_distance(reference.values))
        for beside in (0, _BESIDE):
            batched = self.in_engine(found, blocks, beside, is_interrupted)
            if batched is None:
                return None
            bounds.observe(*difference(batched, reference))
        for chunk_tokens in OTHER_CHUNKS:
            chunked = self.anew(found, piece, chunk_tokens, is_interrupted)
            if chunked is None:
                return None
            bounds.observe(*difference(chunked, reference))
        return bounds


def _least_distance(values: Sequence[mx.array]) -> float:
    floats = [value.dtype for value in values if mx.issubdtype(value.dtype, mx.floating)]
    eps = max((float(mx.finfo(dtype).eps) for dtype in floats), default=0.0)
    return max(_LEAST_DISTANCE, _LEAST_ROUNDINGS * eps)
