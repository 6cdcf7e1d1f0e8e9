"""Estimates the memory that a model takes: its floor, and the bytes of its sequences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.memory.caches import (
    SequenceCache,
    cache_shape,
    drafter_shape,
    head_shape,
    language_of,
)
from gateway.memory.weights import (
    EstimateError,
    LoadOptions,
    Weights,
    adapter_bytes,
    part_of,
    read_weights,
)
from gateway.memory.working_space import NO_CACHES, encoder_bytes, picture_bytes, working_bytes
from gateway.system.memory import BackEnd
from protocol.encoders import MLX_VLMS, encoder_of
from protocol.life import CACHE_STEP_TOKENS, DRAFT_TOKENS
from protocol.model_files import DrafterKind, drafter_kind, head_beside, read_config
from protocol.model_folder import longest_text_of

# Weights are known to the byte. All other memory is calculated; the error is at most this share.
_MARGIN: Final = 0.15
_NO_OPTIONS: Final = LoadOptions()
# Where sequences take no memory, other limits bound their number.
MOST_ROWS: Final = 10_000
_MOST_BYTES: Final = 1 << 48


class EstimateLine(Struct, frozen=True):
    """One part of a floor."""

    name: str
    bytes: int
    detail: str


class Estimate(Struct, frozen=True):
    """The memory of a worker, in bytes.

    `fixed_bytes` is the process with all weights, also of adapter and draft model: calculated, or
    as measured after an earlier load. A step takes `working_bytes`, and `working_token_bytes` more
    for each token of its longest sequence. `context_tokens` is the smaller of the configured limit
    and the model's own. If several `ranks` run here, the bytes are those of all these ranks
    together.
    """

    weight_bytes: int
    process_bytes: int
    calculated_fixed_bytes: int
    measured_fixed_bytes: int | None
    working_bytes: int
    working_token_bytes: int
    shape: SequenceCache
    context_tokens: int
    ordinary_tokens: int
    adapter_bytes: int = 0
    draft_bytes: int = 0
    draft_shape: SequenceCache | None = None
    ranks: int = 1

    @property
    def fixed_bytes(self) -> int:
        return self.measured_fixed_bytes or self.calculated_fixed_bytes

    @property
    def floor_bytes(self) -> int:
        """The bytes of a worker with one sequence of ordinary length."""
        return self.limit_bytes(1, min(self.ordinary_tokens, self.context_tokens))

    @property
    def whole_bytes(self) -> int:
        """The bytes of a worker with one sequence that fills the context."""
        return self.limit_bytes(1, self.context_tokens)

    @property
    def token_bytes(self) -> int:
        """Bytes of one more token, in the layers that keep all tokens."""
        return self.shape.full_token_bytes

    @property
    def lines(self) -> tuple[EstimateLine, ...]:
        """The parts of the floor, whose sum is the floor."""
        tokens = min(self.ordinary_tokens, self.context_tokens)
        measured = "as measured after a load" if self.measured_fixed_bytes else None
        added_bytes = self.adapter_bytes + self.draft_bytes
        process_bytes = self.fixed_bytes - self.weight_bytes - added_bytes
        cache_bytes = self._cache_bytes(1, tokens)
        working_bytes = self.working_bytes + self.working_token_bytes * tokens
        known_bytes = self.fixed_bytes + cache_bytes + working_bytes
        times = "" if self.ranks == 1 else f", {self.ranks} times"
        parts = "" if self.ranks == 1 else f", in {self.ranks} parts"
        return (
            EstimateLine("process", process_bytes, measured or f"interpreter, MLX, mlx-lm{times}"),
            EstimateLine("weights", self.weight_bytes, f"all model*.safetensors{parts}"),
            *self._added_lines(),
            EstimateLine(
                "cache", cache_bytes, f"one sequence of {tokens:,} tokens, while it grows"
            ),
            EstimateLine(
                "working space", working_bytes, f"a chunk of a prompt, freed buffers{times}"
            ),
            EstimateLine("margin", self.floor_bytes - known_bytes, "of what is calculated"),
        )

    def _added_lines(self) -> Iterator[EstimateLine]:
        if self.adapter_bytes:
            yield EstimateLine("adapter", self.adapter_bytes, "adapters.safetensors")
        if self.draft_bytes:
            yield EstimateLine("draft model", self.draft_bytes, "all of its model*.safetensors")

    def _cache_bytes(self, rows: int, tokens: int) -> int:
        """Bytes of the caches of the model, and of its draft model or own head, which keep few
        tokens.
        """
        own_bytes = self.shape.peak_bytes(rows, tokens)
        if self.draft_shape is None:
            return own_bytes
        return own_bytes + self.draft_shape.peak_bytes(rows, min(tokens, DRAFT_TOKENS))

    def limit_bytes(self, rows: int, tokens: int) -> int:
        """Bytes of the process with `rows` sequences of `tokens` tokens in one batch."""
        uncertain_bytes = (
            self._cache_bytes(rows, tokens) + self.working_bytes + self.working_token_bytes * tokens
        )
        return self.fixed_bytes + int(uncertain_bytes * (1.0 + _MARGIN))

    def rows(self, limit_bytes: int, tokens: int) -> int:
        """How many sequences of `tokens` tokens have room within `limit_bytes`."""
        if tokens > self.context_tokens or self.limit_bytes(1, tokens) > limit_bytes:
            return 0
        one_bytes = self.limit_bytes(2, tokens) - self.limit_bytes(1, tokens)
        if one_bytes <= 0:
            return MOST_ROWS
        return min(MOST_ROWS, 1 + (limit_bytes - self.limit_bytes(1, tokens)) // one_bytes)

    def longest_tokens(self, limit_bytes: int) -> int:
        """The length of the longest sequence that has room within `limit_bytes`, in whole steps of
        a cache; 0: no sequence has room.
        """
        steps = bisect_right(
            range(1, self.context_tokens // CACHE_STEP_TOKENS + 2),
            limit_bytes,
            key=lambda step: self.limit_bytes(1, step * CACHE_STEP_TOKENS),
        )
        return min(self.context_tokens, steps * CACHE_STEP_TOKENS)


class EstimateTerms(Struct, frozen=True):
    """The terms on which an estimate depends beside the model's files. `context_tokens` is the
    configured limit. At a load there must be room for a sequence of `ordinary_tokens`. A worker
    without a model takes `process_bytes`. A worker with this model took `measured_fixed_bytes`;
    None: not measured.
    """

    context_tokens: int
    ordinary_tokens: int
    process_bytes: int
    measured_fixed_bytes: int | None
    system: BackEnd
    options: LoadOptions = _NO_OPTIONS


def estimate(folder: Path, terms: EstimateTerms) -> Estimate:
    """Estimate a model by its files. Blocks for some milliseconds.

    Raises:
        EstimateError: the files can't be understood.
    """
    options = terms.options
    weights = read_weights(folder, pictures=options.pictures)
    config = _config(folder)
    if encoder_of(config) is not None:
        terms = _for_texts_of(folder, terms)
    result = estimated(config, weights, terms, str(folder / "config.json"))
    if options.ranks > 1:
        return of_ranks(result, config, weights, options)
    if options.pictures:
        added_bytes = picture_bytes(config, weights.element_bytes)
        if added_bytes > _MOST_BYTES:
            raise EstimateError(f"{folder} can't be understood: no machine has such pictures")
        result = msgspec.structs.replace(result, working_bytes=result.working_bytes + added_bytes)
    if options.adapter is not None:
        result = _with_adapter(result, adapter_bytes(options.adapter))
    if (draft := _draft_of(folder, weights, options)) is not None:
        alone = msgspec.structs.replace(
            terms, process_bytes=0, measured_fixed_bytes=None, options=_NO_OPTIONS
        )
        result = _with_draft(result, estimate(draft, alone))
    return result


def _for_texts_of(folder: Path, terms: EstimateTerms) -> EstimateTerms:
    """The terms for an encoder, whose files may bound its texts."""
    try:
        longest_tokens = longest_text_of(folder) or terms.context_tokens
    except OSError as error:
        raise EstimateError(f"{folder} can't be read: {error}") from error
    shorter_tokens = min(terms.context_tokens, longest_tokens)
    return msgspec.structs.replace(terms, context_tokens=shorter_tokens)


def _draft_of(folder: Path, weights: Weights, options: LoadOptions) -> Path | None:
    """The folder of the drafter that guesses for a model, if it has one."""
    if options.takes_own_head and not weights.has_own_head:
        return head_beside(folder)
    return options.draft


def of_ranks(
    model: Estimate, config: dict[str, Any], weights: Weights, options: LoadOptions
) -> Estimate:
    """The estimate of all ranks of a model on this machine. Each counts as large as the largest."""
    part = part_of(language_of(config), options.ranks, options.split)
    ranks = options.ranks_here
    own_bytes = weights.bytes - weights.layer_bytes + weights.layer_bytes * part.weights
    weight_bytes = ranks * ceil(own_bytes)
    process_bytes = model.process_bytes * ranks
    return msgspec.structs.replace(
        model,
        ranks=ranks,
        weight_bytes=weight_bytes,
        process_bytes=process_bytes,
        calculated_fixed_bytes=process_bytes + weight_bytes,
        working_bytes=model.working_bytes * ranks,
        working_token_bytes=model.working_token_bytes * ranks,
        shape=model.shape.times(ranks * part.cache, part.layers),
    )


def _with_adapter(model: Estimate, added_bytes: int) -> Estimate:
    return msgspec.structs.replace(
        model,
        adapter_bytes=added_bytes,
        calculated_fixed_bytes=model.calculated_fixed_bytes + added_bytes,
    )


def _with_draft(model: Estimate, draft: Estimate) -> Estimate:
    """Add a draft model, whose caches have no windows. The models compute in turns, so only the
    larger working space counts.
    """
    shape = msgspec.structs.replace(
        draft.shape,
        full_token_bytes=draft.shape.full_token_bytes + draft.shape.window_token_bytes,
        window_token_bytes=0,
    )
    return msgspec.structs.replace(
        model,
        draft_bytes=draft.weight_bytes,
        draft_shape=shape,
        calculated_fixed_bytes=model.calculated_fixed_bytes + draft.weight_bytes,
        working_bytes=max(model.working_bytes, draft.working_bytes),
        working_token_bytes=max(model.working_token_bytes, draft.working_token_bytes),
    )


def estimated(
    config: dict[str, Any], weights: Weights, terms: EstimateTerms, name: str
) -> Estimate:
    """The estimate of a model without adapter and draft model. `name` is the name of the
    configuration in errors.

    Raises:
        EstimateError: the configuration can't be understood.
    """
    text = language_of(config)
    context_tokens = terms.context_tokens
    own_context = text.get("max_position_embeddings")
    if isinstance(own_context, int) and own_context > 0:
        context_tokens = min(context_tokens, own_context)
    ordinary_tokens = min(terms.ordinary_tokens, context_tokens)
    element_bytes, kv_bits = weights.element_bytes, terms.options.kv_bits
    own_head = None
    try:
        if (encoder := encoder_of(config)) is not None:
            shape = NO_CACHES
            by_mlx_vlm = encoder in MLX_VLMS
            short_bytes, long_bytes = (
                encoder_bytes(text, element_bytes, tokens, terms.system, by_mlx_vlm=by_mlx_vlm)
                for tokens in (ordinary_tokens, context_tokens)
            )
        else:
            if drafter_kind(config) in (DrafterKind.HEAD, DrafterKind.EAGLE3):
                shape = drafter_shape(config, element_bytes)
            else:
                shape = cache_shape(config, element_bytes, kv_bits)
            if weights.has_own_head and terms.options.takes_own_head:
                own_head = head_shape(config, element_bytes)
            short_bytes, long_bytes = (
                working_bytes(
                    text, element_bytes, tokens, terms.system, quantized=kv_bits is not None
                )
                for tokens in (ordinary_tokens, context_tokens)
            )
        if max(short_bytes, long_bytes, shape.sequence_bytes(context_tokens)) > _MOST_BYTES:
            raise ValueError("no machine has the memory for such numbers")
    except (TypeError, ValueError, ArithmeticError) as error:
        raise EstimateError(f"{name} can't be understood: {error}") from error
    more_tokens = context_tokens - ordinary_tokens
    token_bytes = -(-(long_bytes - short_bytes) // more_tokens) if more_tokens else 0
    return Estimate(
        weight_bytes=weights.bytes,
        process_bytes=terms.process_bytes,
        calculated_fixed_bytes=terms.process_bytes + weights.bytes,
        measured_fixed_bytes=terms.measured_fixed_bytes,
        working_bytes=max(0, short_bytes - token_bytes * ordinary_tokens),
        working_token_bytes=token_bytes,
        shape=shape,
        draft_shape=own_head,
        context_tokens=context_tokens,
        ordinary_tokens=ordinary_tokens,
    )


def model_key(folder: Path, python: str | None, options: LoadOptions = _NO_OPTIONS) -> str:
    """The key by which a model's measurements are kept. It has the state of the files, the
    interpreter, and options that change the memory.

    Raises:
        OSError: the folder can't be read.
    """
    beside = head_beside(folder) if options.takes_own_head else None
    added = (path for path in (options.adapter, options.draft, beside) if path is not None)
    looks = ("pictures",) if options.pictures else ()
    ranks = (f"{options.ranks} ranks by {options.split}, {options.ranks_here} here",)
    return "|".join(
        (
            _state_of(folder),
            python or "",
            *map(_state_of, added),
            *looks,
            *(ranks if options.ranks > 1 else ()),
        )
    )


def _state_of(folder: Path) -> str:
    newest = max((path.stat().st_mtime_ns for path in folder.iterdir()), default=0)
    return f"{folder.resolve()}|{newest}"


def _config(folder: Path) -> dict[str, Any]:
    try:
        return read_config(folder)
    except (OSError, ValueError) as error:
        raise EstimateError(f"{folder / 'config.json'} can't be read: {error}") from error
