"""Whether a model by mlx-vlm computes unlike rows together as it computes each alone.

mlx-vlm's language models were written for one sequence. Many take rows of different lengths, and a
shift of positions for each row. No name or attribute tells which, so it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import mlx.core as mx

from worker import mlx_vlm
from worker.mlx_lm.added_caches import RowShifts, shift_row
from worker.mlx_lm.caches import can_be_merged, make_caches
from worker.mlx_lm.decoding_row import DecodingRow
from worker.mlx_lm.generator import Tap
from worker.mlx_lm.guessing import RowGuesses
from worker.mlx_lm.rows import DecodingRows
from worker.system.errors import one_sentence, passing_kind
from worker.vision.parts_trial import why_breaks_change

# Prompts of different lengths. In steps each row has one token, or these guesses, too.
_PROMPTS: Final = ((3, 5, 4, 6), (9, 8, 7, 9, 4, 3, 11, 10, 5, 2, 12))
_GUESSES: Final = (7, 6)
# The shifts of the two rows' positions, if the model takes shifts.
_SHIFTS: Final = (0, 300)
# Texts alone are not shifted.
_NO_SHIFTS: Final = (0, 0)
# Logits of a batch may differ by this share from those of a row alone, and by so many times their
# number type's precision, since kernels round differently.
_LEAST_ROUNDING: Final = 1e-3
_ROUNDING: Final = 8


def why_alone(model: Any, *, looks: bool = True) -> str | None:
    """Why rows of texts can't decode together with this `LanguagePart`, as a phrase; None: they
    can. If it `looks`, it is a `VisionModel`, and rows of prompts with pictures whose prompts were
    computed alone must decode with them. Its new caches may be quantized.

    Raises:
        ModelError: a model of texts alone can't be served.
    """
    changes = None if looks else why_breaks_change(model)
    if changes is not None:
        return changes
    caches = make_caches(model)
    if model.attends_across or mlx_vlm.tells_prompts(caches) or not can_be_merged(caches):
        return "this model's steps need more than caches, or its caches can't be merged"
    try:
        if _agrees(model, _SHIFTS if looks else _NO_SHIFTS):
            return None
    except Exception as error:
        if passing_kind(error) is not None:
            raise
        # Each architecture fails in its own way.
        return f"this model can't compute several together ({one_sentence(error)})"
    return "this model answers otherwise when several are computed together"


def _agrees(model: Any, row_shifts: tuple[int, int]) -> bool:
    prompts, batch = _compute_prompts(model)
    recorder = _Recorder()
    rows = DecodingRows(Tap(model), recorder, recorder, lends=False)
    begun = [
        DecodingRow(row, list(prompt), len(_GUESSES) + 2, frozenset())
        for row, prompt in enumerate(_PROMPTS)
    ]
    for shifts in batch:
        if isinstance(shifts, RowShifts):
            shifts.set(row_shifts)
    rows.start(begun, batch)
    rows.next()
    narrow, wide = recorder.seen
    # One token a row, if the caches can't forget wrong guesses.
    steps = len(wide) // len(_PROMPTS)
    for row, (prompt, shift) in enumerate(zip(_PROMPTS, row_shifts, strict=True)):
        following = [recorder.first[row], *_GUESSES][:steps]
        logits = _compute_alone(model, prompt, following, shift)
        size = len(prompt)
        pairs = [
            (prompts[row, : size - 1], logits[: size - 1]),
            (narrow[row : row + 1], logits[size - 1 : size]),
            (wide[row * steps : (row + 1) * steps], logits[size:]),
        ]
        if not all(_alike(*texts) for texts in pairs):
            return False
    return not any(row_shifts) or _shifts_count(model)


def _compute_prompts(model: Any) -> tuple[mx.array, list[Any]]:
    """The logits of both prompts without their last tokens, computed together, and the caches."""
    lengths = [len(prompt) - 1 for prompt in _PROMPTS]
    width = max(lengths)
    batch = [type(item).merge([item, again]) for item, again in _pairs(model)]
    padding = [width - length for length in lengths]
    for layer in batch:
        layer.prepare(lengths=lengths, right_padding=padding)
    tokens = mx.array([[*prompt[:-1], *[0] * (width - len(prompt) + 1)] for prompt in _PROMPTS])
    logits = model(tokens, cache=batch)
    mx.eval(logits, [layer.state for layer in batch])
    for layer in batch:
        layer.finalize()
    return logits, batch


def _pairs(model: Any) -> list[tuple[Any, Any]]:
    return list(zip(make_caches(model), make_caches(model), strict=True))


def _compute_alone(
    model: Any, prompt: Sequence[int], following: Sequence[int], shift: int
) -> mx.array:
    """The logits of a prompt and of tokens that follow it, as mlx-vlm computes one sequence. From
    the last token of the prompt on positions are shifted, if the model takes shifts.
    """
    caches = make_caches(model)
    token_ids = [*prompt, *following]
    if not shift or not any(isinstance(cache, RowShifts) for cache in caches):
        logits = _starting(model, token_ids)(mx.array([token_ids]), cache=caches)
        return logits[0]
    before = len(prompt) - 1
    logits = _starting(model, token_ids)(mx.array([token_ids[:before]]), cache=caches)
    shift_row(caches, shift)
    rest = model(mx.array([token_ids[before:]]), cache=caches)[0]
    return mx.concatenate([logits[0], rest])


def _starting(model: Any, token_ids: list[int]) -> Callable[..., mx.array]:
    """The model for one sequence that begins with these tokens."""
    looks = hasattr(model, "start_prompt")
    started: Callable[..., mx.array] = model.start_prompt(token_ids, None, 0) if looks else model
    return started


def _shifts_count(model: Any) -> bool:
    """Whether a shift changes what the model computes, if it takes shifts."""
    if not any(isinstance(cache, RowShifts) for cache in make_caches(model)):
        return True
    logits = [_compute_alone(model, _PROMPTS[1], _GUESSES, shift) for shift in _SHIFTS]
    return not _alike(*logits)


def _alike(one: mx.array, other: mx.array) -> bool:
    """Whether logits or log probabilities, (tokens, vocabulary), tell the same."""
    share = max(_LEAST_ROUNDING, _ROUNDING * mx.finfo(other.dtype).eps)
    one, other = (_centred(array) for array in (one, other))
    difference = mx.linalg.norm(one - other)
    return bool((difference <= share * mx.linalg.norm(other)).item())


def _centred(logits: mx.array) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits - logits.mean(axis=-1, keepdims=True)


class _Recorder:
    """Guesses the same tokens for each row, draws the likeliest ones, and keeps what it is asked
    about.
    """

    def __init__(self) -> None:
        self.seen: list[mx.array] = []
        self.first: list[int] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.seen.append(logprobs)
        drawn = mx.argmax(logprobs, axis=-1)
        self.first = self.first or drawn.tolist()  # type: ignore[assignment]
        return drawn

    def is_likely(self, rows: Sequence[int]) -> bool:
        return True

    def guess(
        self,
        rows: Sequence[int],
        first: Sequence[int],
        most: Sequence[int],
        draft: Callable[[list[int]], list[list[int]]],
    ) -> list[list[int]]:
        return [list(_GUESSES) for _ in rows]

    def possible(self, row: int, guesses: list[int]) -> list[int]:
        return guesses

    def check(
        self, logprobs: mx.array, logits: mx.array, rows: Sequence[RowGuesses[int]]
    ) -> mx.array:
        self.seen.append(logprobs)
        return mx.argmax(logprobs, axis=-1)

    def accept(self, drawn: list[int]) -> list[int]:
        return [0] * len(_PROMPTS)

    def record(self, row: int, token: int) -> None:
        """The guesses are the same whatever comes."""
