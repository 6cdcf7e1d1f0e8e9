"""Whether a model will fit, told before a byte of its weights is there."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from gateway.config.model_settings import ModelSettings
from gateway.library.pull_messages import Planned
from gateway.memory.estimate import EstimateTerms, estimated
from gateway.memory.fitting import Fit, fit
from gateway.memory.weights import EstimateError, Weights
from gateway.models.fleet import Fleet
from gateway.system.memory import back_end
from gateway.system.notation import format_size

_TOKENS: Final = 8_000
_DEFAULTS: Final = ModelSettings(path="")

Verdict: TypeAlias = Literal["fits", "fits with a shorter context", "doesn't fit"]


class Outlook(Struct, frozen=True):
    """What a load will ask for, of what can be had beside what is pinned; `rows` sequences of
    `row_tokens` will have room at once, with a context of `context_tokens`. `sentence` says it all.
    """

    fits: bool
    verdict: Verdict
    needed_bytes: int
    possible_bytes: int
    context_tokens: int
    rows: int
    row_tokens: int
    sentence: str


def outlook_beside(fleet: Fleet, planned: Planned) -> Outlook | None:
    """Whether a model that is to be pulled will fit beside what is pinned."""
    return outlook(
        planned,
        fleet.scheduler.admission.ledger.possible_bytes,
        fleet.process_bytes,
        fleet.settings.memory.ordinary_tokens,
    )


def outlook(
    planned: Planned, possible_bytes: int, process_bytes: int, ordinary_tokens: int
) -> Outlook | None:
    """None: its configuration doesn't tell. Headers of the weights' files count as weights: they
    are small beside these.
    """
    terms = EstimateTerms(
        _DEFAULTS.context_tokens, ordinary_tokens, process_bytes, None, back_end()
    )
    try:
        found = estimated(
            planned.config,
            Weights(planned.weight_bytes, planned.element_bytes),
            terms,
            f"config.json of {planned.repository}",
        )
    except EstimateError:
        return None
    result = fit(found, possible_bytes)
    tokens = min(_TOKENS, result.context_tokens)
    rows = found.rows(possible_bytes, tokens)
    verdict: Verdict = "fits"
    if not result.fits:
        verdict = "doesn't fit"
    elif result.is_cut:
        verdict = "fits with a shorter context"
    return Outlook(
        result.fits,
        verdict,
        result.needed_bytes,
        possible_bytes,
        result.context_tokens,
        rows,
        tokens,
        _sentence(result, rows, tokens),
    )


def _sentence(found: Fit, rows: int, tokens: int) -> str:
    asks = (
        f"its floor is {format_size(found.needed_bytes)}, and "
        f"{format_size(found.possible_bytes)} can be had beside what is pinned"
    )
    if not found.fits:
        return f"It won't fit: {asks}."
    cut = f" with {found.context_tokens:,} tokens of context" if found.is_cut else ""
    sequences = "1 sequence" if rows == 1 else f"{rows:,} sequences"
    return f"It will fit{cut}: {asks}. {sequences} of {tokens:,} tokens will have room at once."
