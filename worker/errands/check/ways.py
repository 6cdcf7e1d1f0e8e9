"""Do all ways of an engine make the same answer: alone, in a batch, from the prompt cache, with
guesses? And how far do quantized caches drift?
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protocol.check import CheckFinding
from worker.errands.check.loss import TEXT
from worker.errands.check.running import RunAnswer, Runner
from worker.errands.check.subject import Findings, Subject, Teller
from worker.system.errors import ModelError

TELL: Final = Teller("ways")
_ROWS: Final = 8
_TOKENS: Final = 16
# The prompt has more than one block of the prompt cache.
_PROMPT_TOKENS: Final = 80
# Rounding may choose another token if the two likeliest differ by less, in nats.
_TIE: Final = 0.25
_KV_BITS: Final = (8, 4)
# A drift of quantized caches that changes answers, in nats.
_DRIFT: Final = 0.5


def check_the_ways(subject: Subject) -> Findings:
    ids = list(subject.tokenizer.encode(TEXT))
    prompts = [ids[: _PROMPT_TOKENS - 4 * row] for row in range(_ROWS)]
    runner = Runner(subject, cached=True, rows=_ROWS)
    cold = runner.answers(prompts[:1], _TOKENS)[0]
    yield from _same("from the prompt cache", cold, runner.answers(prompts[:1], _TOKENS)[0])
    alone = runner.alone
    runner.close()
    tried = ["from the prompt cache"] if runner.caches else []
    if alone:
        yield TELL.remark(
            "Requests of this model run one at a time.",
            f"{alone[0].upper()}{alone[1:]}.",
            "Take another architecture where many requests come at once.",
        )
    elif subject.left_s > 0:
        tried.append(f"in a batch of {_ROWS}")
        batch = Runner(subject, rows=_ROWS)
        yield from _same(tried[-1], cold, batch.answers(prompts, _TOKENS)[0])
        batch.close()
        tried.append("with guesses")
        guessing = Runner(subject, guesses=True)
        yield from _same(tried[-1], cold, guessing.answers(prompts[:1], _TOKENS)[0])
        guessing.close()
    drifts = []
    for bits in _KV_BITS:
        if subject.left_s <= 0:
            break
        try:
            quantized = Runner(subject, kv_bits=bits)
        except ModelError:
            break
        drift = _drift(cold, quantized.answers(prompts[:1], _TOKENS)[0])
        quantized.close()
        drifts.append(f"kv_bits {bits} by {drift:.2f} nats")
        if drift > _DRIFT and subject.order.kv_bits == bits:
            yield TELL.warning(
                f"The configured kv_bits of {bits} changes the answers of this model.",
                f"Up to the first other token its probabilities drift by {drift:.2f} nats.",
                "Set kv_bits to 8, or leave it out.",
                "model",
            )
    drifted = f"; drift: {', '.join(drifts)}" if drifts else ""
    return f"The same answer {', '.join(tried) or 'alone'}{drifted}."


def _same(way: str, cold: RunAnswer, other: RunAnswer) -> Iterator[CheckFinding]:
    place = _parting(cold, other)
    if place is None:
        return
    gap = _gap(cold, place)
    evidence = (
        f"Token {place + 1} of {len(cold.tokens)} is another one; alone the two likeliest differ "
        f"by {gap:.2f} nats"
    )
    if gap > _TIE:
        yield TELL.fault(
            f"The answer is another one {way}.",
            f"{evidence}, which rounding doesn't explain.",
            "Report it with the name of the model, and the output of bulkhead doctor.",
            "bulkhead",
        )
    else:
        yield TELL.remark(
            f"The answer {way} differs by rounding.",
            f"{evidence}.",
            "",
        )


def _parting(cold: RunAnswer, other: RunAnswer) -> int | None:
    pairs = zip(cold.tokens, other.tokens, strict=False)
    return next((place for place, (one, two) in enumerate(pairs) if one != two), None)


def _gap(answer: RunAnswer, place: int) -> float:
    (_, best), (_, second) = answer.likeliest[place][:2]
    return best - second


def _drift(cold: RunAnswer, other: RunAnswer) -> float:
    """The largest change of the likeliest token's log probability, up to the first other token."""
    parting = _parting(cold, other)
    places = range(len(cold.tokens) if parting is None else parting + 1)
    changes = [
        abs(cold.likeliest[place][0][1] - dict(other.likeliest[place]).get(token, -1e3))
        for place in places
        for token in [cold.likeliest[place][0][0]]
    ]
    return min(max(changes, default=0.0), 99.0)
