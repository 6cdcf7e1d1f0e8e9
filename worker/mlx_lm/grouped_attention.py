"""Attention of a batch whose rows are in groups: the rows of a group are of similar length.

The rows of all groups go through a model together, so its weights are read once. Only attention
looks at one group after another, so that no row is padded to the rows of another group. Importing
this module replaces MLX's and mlx-lm's functions of attention by functions that can do this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models import base

# This import replaces attention itself, so it comes first.
import worker.mlx_lm.cuda  # noqa: F401
from worker.mlx_lm.row_caches import RowsCache, changed

_attention: Final = mx.fast.scaled_dot_product_attention
_quantized_attention: Final[Callable[..., mx.array]] = base.quantized_scaled_dot_product_attention


class GroupParts:
    """The keys, the values or the mask of each group. A model can only hand them on."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    @property
    def dtype(self) -> mx.Dtype:
        dtype: mx.Dtype = self.parts[0].dtype
        return dtype


class GroupsCache:
    """The caches of one layer, one for each group, with the methods of mlx-lm's caches. `offset`:
    the position of the next token of each row, (rows,).
    """

    def __init__(self, groups: Sequence[RowsCache], offset: mx.array) -> None:
        self.offset = offset
        self._groups = groups

    def empty(self) -> bool:
        return False

    def make_mask(self, *arguments: Any, **options: Any) -> GroupParts | None:
        masks = [group.make_mask(*arguments, **options) for group in self._groups]
        return None if all(mask is None for mask in masks) else GroupParts(masks)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[GroupParts, GroupParts]:
        rows = [len(cache.lengths.tokens) for cache in self._groups]
        new = zip(self._groups, _split(keys, rows), _split(values, rows), strict=True)
        for group, *arrays in new:
            group.update_and_fetch(*arrays)
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[GroupParts, GroupParts]:
        keys, values = zip(*(group.keys_and_values() for group in self._groups), strict=True)
        return GroupParts(keys), GroupParts(values)


def joined(groups: Sequence[Sequence[Any]]) -> list[Any]:
    """The caches of a step from those of each group. Other kinds of caches are shared by all
    groups.
    """
    offsets: dict[int, mx.array] = {}

    def of_layer(*caches: Any) -> Any:
        first = caches[0]
        if not isinstance(first, RowsCache):
            return first
        shared = id(first.lengths)
        if shared not in offsets:
            offsets[shared] = mx.array(
                [tokens for cache in caches for tokens in cache.lengths.tokens]
            )
        return GroupsCache(caches, offsets[shared])

    return changed(of_layer, *groups)


def attention(
    queries: mx.array, keys: Any, values: Any, *, mask: Any = None, **options: Any
) -> mx.array:
    """MLX's attention, of each group alone if keys and values are in parts."""
    if not isinstance(keys, GroupParts):
        return _attention(queries, keys, values, mask=mask, **options)

    def of_group(queries: mx.array, group: int, mask: Any) -> mx.array:
        return _attention(queries, keys.parts[group], values.parts[group], mask=mask, **options)

    return _by_group(of_group, queries, keys, mask)


def quantized_attention(
    queries: mx.array, q_keys: Any, q_values: Any, scale: float, mask: Any, **options: Any
) -> mx.array:
    """mlx-lm's attention over quantized keys and values, of each group alone if these are in parts.
    Each of both has the packed numbers, the scales and the biases.
    """
    if not isinstance(q_keys[0], GroupParts):
        return _quantized_attention(queries, q_keys, q_values, scale, mask, **options)

    def of_group(queries: mx.array, group: int, mask: Any) -> mx.array:
        keys_and_values = [
            tuple(array.parts[group] for array in arrays) for arrays in (q_keys, q_values)
        ]
        return _quantized_attention(queries, *keys_and_values, scale, mask, **options)

    return _by_group(of_group, queries, q_keys[0], mask)


def _by_group(
    of_group: Callable[[mx.array, int, Any], mx.array],
    queries: mx.array,
    keys: GroupParts,
    mask: Any,
) -> mx.array:
    masks = mask.parts if isinstance(mask, GroupParts) else [mask] * len(keys.parts)
    split_queries = _split(queries, [part.shape[0] for part in keys.parts])
    parts = zip(split_queries, masks, strict=True)
    return mx.concatenate(
        [of_group(array, group, part) for group, (array, part) in enumerate(parts)]
    )


def _split(array: mx.array, rows: Sequence[int]) -> list[mx.array]:
    ends = list(accumulate(rows))
    return [array[end - count : end] for count, end in zip(rows, ends, strict=True)]


mx.fast.scaled_dot_product_attention = attention  # type: ignore[assignment]  # as MLX's
base.quantized_scaled_dot_product_attention = quantized_attention
