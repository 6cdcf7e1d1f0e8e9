"""Changes of a loaded model that undo a known fault of conversions. Each is tried in memory, and is
undone again: the fault whose repair makes a plain text much likelier is the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import mlx.core as mx
import mlx.nn as nn

from protocol.check import Owner
from worker.mlx_lm.models import FREQUENCIES

_BASES: Final = (10.0, 0.1)
# Pairs of modules that have the same shapes, and that conversions mix up.
_PAIRS: Final = (("gate_proj", "up_proj"), ("q_proj", "k_proj"), ("k_proj", "v_proj"))


class Repair(NamedTuple):
    """`apply` makes the change for the time of a block."""

    what: str
    remedy: str
    apply: Callable[[], AbstractContextManager[None]]
    owner: Owner = "conversion"


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of an object, or of a module, another value for the time of a block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def all_of(changes: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


def position_repairs(model: Any) -> Iterator[Repair]:
    """Repairs of how a model knows the positions of tokens. Their faults show little in a short
    text.
    """
    yield from _bases(model)
    yield from _traditional(model)


def whole_repairs(model: Any) -> Iterator[Repair]:
    """Repairs of all layers together."""
    for pair in _PAIRS:
        if owners := _owners(model, pair):
            yield Repair(
                f"{pair[0]} and {pair[1]} are swapped in each layer.",
                "Swap the two names in the conversion, and convert again.",
                partial(_swapped, owners, pair),
            )
    yield from _norms(model)


def head_repairs(model: Any) -> Iterator[Repair]:
    """Repairs of the head, if the embeddings can stand in for it."""
    inner = getattr(model, "language_model", model)
    trunk = getattr(inner, "model", None)
    embedding = getattr(trunk, "embed_tokens", None)
    if isinstance(getattr(inner, "lm_head", None), nn.Module) and embedding is not None:
        yield Repair(
            "The head was not trained: the embeddings are the head of this model.",
            "Set tie_word_embeddings to true in config.json, and drop lm_head from the files.",
            lambda: replaced(inner, "lm_head", embedding.as_linear),
        )


def layer_repairs(model: Any, layer: Any, name: str) -> Iterator[Repair]:
    """Repairs of one layer, of which `name` is the name."""
    for pair in _PAIRS:
        if owners := _owners(layer, pair):
            yield Repair(
                f"{pair[0]} and {pair[1]} of {name} are swapped.",
                "Swap the two names in the conversion, and convert again.",
                partial(_swapped, owners, pair),
            )


def scaled(owner: Any, factor: float) -> AbstractContextManager[None]:
    """A module whose weight is multiplied by a factor."""
    return replaced(owner, "weight", owner.weight * factor)


def rotations(model: Any) -> list[Any]:
    """The modules that turn queries and keys by their position."""
    return [
        module
        for _, module in model.named_modules()
        if isinstance(getattr(module, "base", None), int | float)
        or isinstance(getattr(module, FREQUENCIES, None), mx.array)
    ]


def _bases(model: Any) -> Iterator[Repair]:
    turning = rotations(model)
    if not turning:
        return
    base = getattr(turning[0], "base", None)
    said = f"{base:g}" if isinstance(base, int | float) else "the configured one"
    for factor in _BASES:
        wanted = f"{base * factor:g}" if isinstance(base, int | float) else f"{factor:g} times that"
        yield Repair(
            f"The base of the positions (RoPE) is {said}, and should be {wanted}.",
            f"Set rope_theta to {wanted} in config.json, as the original model has it.",
            partial(_rotated, turning, factor),
        )


def _rotated(turning: list[Any], factor: float) -> AbstractContextManager[None]:
    changes = []
    for module in turning:
        frequencies = getattr(module, FREQUENCIES, None)
        if isinstance(frequencies, mx.array):
            count = frequencies.shape[0]
            powers = mx.arange(count, dtype=mx.float32) / count
            changes.append(replaced(module, FREQUENCIES, frequencies * factor**powers))
        else:
            changes.append(replaced(module, "base", module.base * factor))
    return all_of(changes)


def _traditional(model: Any) -> Iterator[Repair]:
    turning = [m for m in rotations(model) if isinstance(getattr(m, "traditional", None), bool)]
    if turning:
        yield Repair(
            "The rows of q_proj and k_proj are in the order of another kind of positions (RoPE).",
            "Convert again: the rows of each head have to be permuted, as for llama in GGUF.",
            lambda: all_of([replaced(m, "traditional", not m.traditional) for m in turning]),
        )


def _owners(model: Any, pair: tuple[str, str]) -> list[Any]:
    """The modules that have both parts of a pair, in the same shape."""
    return [
        module
        for _, module in model.named_modules()
        if isinstance(module, nn.Module)
        and all(isinstance(module.get(name), nn.Module) for name in pair)
        and all("weight" in module[name] for name in pair)
        and module[pair[0]].weight.shape == module[pair[1]].weight.shape
    ]


def _swapped(owners: list[Any], pair: tuple[str, str]) -> AbstractContextManager[None]:
    one, two = pair
    changes = []
    for owner in owners:
        changes += [replaced(owner, one, owner[two]), replaced(owner, two, owner[one])]
    return all_of(changes)


def norms(model: Any) -> dict[str, Any]:
    """The norms of a model by their names."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Module)
        and "norm" in name.rpartition(".")[2].lower()
        and isinstance(module.get("weight"), mx.array)
        and module.weight.ndim == 1
    }


def _norms(model: Any) -> Iterator[Repair]:
    every = list(norms(model).values())
    if not every:
        return
    for step, words in ((1.0, "lack"), (-1.0, "have")):
        yield Repair(
            f"The weights of all norms {words} the 1 that this architecture adds.",
            "Convert again with a newer mlx-lm, which treats the norms of this architecture.",
            partial(_shifted, every, step),
        )


def _shifted(every: list[Any], step: float) -> AbstractContextManager[None]:
    return all_of([replaced(module, "weight", module.weight + step) for module in every])
