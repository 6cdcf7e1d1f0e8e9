"""mlx-lm's caches: their kinds, the places of tokens in their arrays, and their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, Final, TypeAlias

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from protocol.life import CACHE_STEP_TOKENS
from worker.mlx_lm.added_caches import RowShifts
from worker.mlx_lm.row_caches import RowsCache

# The caches of layers with a recurrent state.
RecurrentCache: TypeAlias = ArraysCache
# The caches of one layer that has several.
SeveralCaches: TypeAlias = CacheList
# Caches that grow with each token. Their arrays have the tokens on the last axis but one.
_GROWING: Final = (KVCache, ConcatenateKVCache, BatchKVCache)
# Caches that don't grow, and whose states can be taken out and put back.
_FIXED: Final = (RotatingKVCache, ArraysCache, ChunkedKVCache)
_WINDOWED: Final = (RotatingKVCache, ChunkedKVCache)
# Rounding differs by less, and tokens that are wrong differ by more.
_NEARLY: Final = 0.05
# The step by which the caches of a trial grow. A trial runs a few tokens of several sequences. It
# is part of a load, which has to stay within the floor: that may have room for one sequence.
_TRIAL_STEP_TOKENS: Final = 16
_WORDS: Final = (
    (RotatingKVCache, "a sliding window"),
    (ArraysCache, "a recurrent state"),
    (ChunkedKVCache, "chunked attention"),
)


def make_caches(model: Any) -> list[Any]:
    """New caches for a model, in the order of its layers."""
    caches: list[Any] = make_prompt_cache(model)
    return caches


def leaves_of(caches: Sequence[Any]) -> list[Any]:
    """The single caches. A `CacheList` is replaced by the caches that it is made of, and so is a
    `QuantizedCache`.
    """
    leaves = []
    for cache in caches:
        leaves += leaves_of(cache.caches) if isinstance(cache, CacheList) else [cache]
    return leaves


def grows(leaf: Any) -> bool:
    """Whether a cache takes more memory with each token, and can be cut at any token. Only the type
    tells this: a rotating cache is trimmable for mlx-lm until its window is full.
    """
    return isinstance(leaf, _GROWING)


def has_known_state(leaf: Any) -> bool:
    """Whether the state of a cache that doesn't grow can be taken out and put back."""
    return isinstance(leaf, _FIXED)


def can_be_merged(caches: Iterable[Any]) -> bool:
    """Whether the caches can be merged into those of a batch."""
    return all(hasattr(cache, "merge") for cache in caches)


def can_be_quantized(leaf: Any) -> bool:
    # The exact type counts, since subclasses may keep more than keys and values.
    return type(leaf) in (KVCache, RowShifts)


def as_mlx_lms(cache: Any) -> Any:
    """mlx-lm's cache in place of another library's, or `cache` itself if mlx-lm lacks that kind."""
    # The exact name counts, since subclasses may keep more.
    match type(cache).__name__:
        case "KVCache" | "HyV4KVCache":
            # The second differs in the steps by which it grows.
            return KVCache()
        case "RotatingKVCache":
            return RotatingKVCache(cache.max_size, cache.keep)
        case _:
            return cache


def in_words(leaves: Iterable[Any]) -> str:
    """The kinds of caches, in words for an error."""
    names = {
        next(
            (f"{words} ({kind.__name__})" for kind, words in _WORDS if isinstance(leaf, kind)),
            type(leaf).__name__,
        )
        for leaf in leaves
    }
    return " and ".join(sorted(names))


def bytes_of(caches: Sequence[Any]) -> tuple[int, int]:
    """The bytes of a sequence's caches for each token, and their fixed bytes. The caches must have
    seen some tokens.

    The types tell which caches grow. A rotating or chunked cache counts with its largest size. Any
    other cache counts with its present size. Some layers leave their cache empty.
    """
    token_bytes = row_bytes = 0
    for leaf in leaves_of(caches):
        if isinstance(leaf, _WINDOWED):
            row_bytes += leaf.nbytes * _window_tokens(leaf) // leaf.keys.shape[2]
        elif isinstance(leaf, KVCache):
            token_bytes += 0 if leaf.keys is None else leaf.nbytes // leaf.keys.shape[2]
        elif hasattr(leaf, "memory_profile") and not has_known_state(leaf):
            # One of mlx-vlm's own kinds, which tell their growth.
            profile = leaf.memory_profile(0)
            token_bytes += ceil(profile.bytes_per_token)
            row_bytes += profile.fixed_bytes
        else:
            row_bytes += leaf.nbytes
    return token_bytes, row_bytes


def elements_of(caches: Sequence[Any]) -> tuple[int, int]:
    """The elements of a sequence in the largest array of its caches: for each token, and the fixed
    ones. See `bytes_of`.
    """
    token_elements = row_elements = 0
    for leaf in leaves_of(caches):
        # A layer without attention leaves its cache empty.
        if isinstance(leaf, (KVCache, *_WINDOWED)) and not leaf.empty():
            each_slot = max(leaf.keys.size, leaf.values.size) // leaf.keys.shape[2]
            if isinstance(leaf, KVCache):
                token_elements = max(token_elements, each_slot)
            else:
                # A cache of rows has up to two steps more before it forgets.
                slots = _window_tokens(leaf) + 2 * CACHE_STEP_TOKENS
                row_elements = max(row_elements, each_slot * slots)
    return token_elements, row_elements


def _window_tokens(leaf: RotatingKVCache | ChunkedKVCache) -> int:
    if isinstance(leaf, RotatingKVCache):
        return int(leaf.max_size)
    return int(leaf.chunk_size) + CACHE_STEP_TOKENS


def is_batch(leaf: Any) -> bool:
    """Whether the rows of a growing cache can be cut together, by `gather`."""
    return isinstance(leaf, BatchKVCache | RowsCache)


def tokens_of(leaf: Any, row: int, begin: int, end: int) -> list[mx.array]:
    """The tokens `begin` to `end` - 1 of a row in a growing cache, as arrays of shape (1, heads,
    tokens, width).
    """
    if isinstance(leaf, BatchKVCache | RowsCache):
        padding = 0 if isinstance(leaf, RowsCache) else leaf.left_padding.tolist()[row]
        begin, end = begin + padding, end + padding
        return [array[row : row + 1, :, begin:end] for array in (leaf.keys, leaf.values)]
    return [array[:, :, begin:end] for array in (leaf.keys, leaf.values)]


def gather(leaf: Any, rows: mx.array, tokens: mx.array) -> tuple[mx.array, ...]:
    """Gather pieces of a batch's rows. `rows`, shape (pieces, 1), has the row of each piece.
    `tokens`, shape (pieces, length), has the numbers of the piece's tokens. Returns the keys and
    the values, shape (pieces, length, heads, width).
    """
    places = tokens if isinstance(leaf, RowsCache) else tokens + leaf.left_padding[rows]
    return leaf.keys[rows, :, places], leaf.values[rows, :, places]


def fill(leaf: Any, arrays: Sequence[mx.array]) -> None:
    """Put the arrays that `tokens_of` gave into a new cache."""
    leaf.keys, leaf.values = arrays
    leaf.offset = arrays[0].shape[2]


def state_of(leaf: Any, row: int) -> Any:
    """The state of a row in a cache that doesn't grow: arrays, numbers, and lists of these."""
    return (leaf.extract(row) if hasattr(leaf, "extract") else leaf).state


def set_state(leaf: Any, state: Any) -> None:
    leaf.state = state


def in_small_steps(caches: list[Any]) -> list[Any]:
    """The same caches, which from now on grow by few tokens: for trials."""
    for leaf in leaves_of(caches):
        leaf.step = _TRIAL_STEP_TOKENS
    return caches


def keeps_states(model: Any) -> bool:
    """Whether layers of a model keep a recurrent state, which can't forget single tokens."""
    return any(isinstance(leaf, ArraysCache) for leaf in leaves_of(make_caches(model)))


def takes_padding(model: Any) -> bool:
    """Whether rows of a batch may have different numbers of tokens in a step. Some architectures
    with recurrent states, such as mlx-lm's mamba, let padding into the state of a row.
    """
    if not keeps_states(model):
        return True
    if not can_be_merged(make_caches(model)):
        return False
    alone = in_small_steps(make_caches(model))
    padded = in_small_steps([type(cache).merge([cache, cache]) for cache in make_caches(model)])
    mx.eval(model(mx.array([[1, 2]]), cache=alone), model(mx.array([[1, 2]] * 2), cache=padded))
    for layer in padded:
        layer.finalize()
        layer.prepare(lengths=[1, 4], right_padding=[3, 0])
    tokens = mx.array([[3, 0, 0, 0], [3, 4, 5, 6]])
    mx.eval(model(tokens[:1, :1], cache=alone), model(tokens, cache=padded))
    for layer in padded:
        layer.finalize()
    states = zip(leaves_of(alone), leaves_of(padded), strict=True)
    return all(
        mx.allclose(alone_state, padded_state[:1], rtol=1e-2, atol=1e-3).item()
        for alone_leaf, padded_leaf in states
        if isinstance(alone_leaf, ArraysCache)
        for alone_state, padded_state in zip(alone_leaf.cache, padded_leaf.cache, strict=True)
    )


def takes_padding_again(model: Any) -> bool:
    """Whether prompts of different lengths may be computed together in several chunks, in each of
    which rows are padded. mlx-vlm's Qwen3.5 takes the padding of a later chunk for tokens.
    """
    chunks = ([1], [2, 3, 4, 5]), ([6, 7, 8], [9]), ([10], [11])
    try:
        together = _in_chunks(model, chunks)
    except (AttributeError, TypeError, ValueError):
        return False
    prompts = ([token for part in row for token in part] for row in zip(*chunks, strict=True))
    alone = [
        model(mx.array([prompt]), cache=in_small_steps(make_caches(model)))[:, -1]
        for prompt in prompts
    ]
    computed, expected = (array.astype(mx.float32) for array in (together, mx.concatenate(alone)))
    return bool(mx.abs(computed - expected).max() <= _NEARLY * mx.abs(expected).max())


def _in_chunks(model: Any, chunks: Iterable[Sequence[list[int]]]) -> mx.array:
    """The logits, (rows, vocabulary), after chunks of rows. The last one has equally long rows."""
    batch: list[Any] = []
    for rows in chunks:
        batch = batch or in_small_steps(
            [type(cache).merge([cache] * len(rows)) for cache in make_caches(model)]
        )
        lengths = [len(tokens) for tokens in rows]
        padding = [max(lengths) - length for length in lengths]
        for layer in batch:
            layer.prepare(lengths=lengths, right_padding=padding)
        padded = [row + [0] * gap for row, gap in zip(rows, padding, strict=True)]
        logits: mx.array = model(mx.array(padded), cache=batch)
        mx.eval(logits, [layer.state for layer in batch])
        for layer in batch:
            layer.finalize()
    return logits[:, -1]
