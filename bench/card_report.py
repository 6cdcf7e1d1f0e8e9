"""The figures of `python -m bench.card`: records, as its JSON has them, and their tables."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from msgspec import Struct

from bench.results import BULKHEAD, Generation, MeasuringMachine

_LEAST: Final = "≥"
_MOST: Final = "≤"
_MANY: Final = 128


class Streams(Struct, frozen=True):
    """Rounds of one model with so many streams, of mlx-lm's batch generator and of Bulkhead.
    `sampled` are Bulkhead's with settings of their own for each stream; empty: not measured. Each
    temperature is a kernel of its own for mlx-lm, and compiling these takes minutes.
    """

    model: str
    streams: int
    raw: list[Generation]
    ours: list[Generation]
    sampled: list[Generation]


class OneRow(Struct, frozen=True):
    """Tokens a second of one row without guesses behind `tokens` tokens, of mlx-lm's loop and of
    Bulkhead, round by round.
    """

    model: str
    tokens: int
    raw: list[float]
    ours: list[float]


class FirstMinute(Struct, frozen=True):
    """With no compiled kernels: seconds from the start of a process to the first token, and tokens
    a second of the first 32 sampled streams and of the next.
    """

    model: str
    raw_s: float
    ours_s: float
    sampled: list[float]


class Edits(Struct, frozen=True):
    """The seconds of each of a server's sessions that edit files, and the share of answers that
    were exactly the expected ones.
    """

    server: str
    seconds: list[float]
    expected: float


class CardReport(Struct, frozen=True):
    """`failed`: what didn't run, and why. `seconds`: of the whole measurement."""

    machine: MeasuringMachine
    card: str
    streams: list[Streams]
    rows: list[OneRow]
    first: list[FirstMinute]
    edits: list[Edits]
    failed: list[str]
    seconds: float


def render(report: CardReport) -> str:
    """The tables in Markdown."""
    tables = [_streams(report), _rows(report), _first(report), _edits(report)]
    head = "Medians of rounds, and their ratios; rates in tokens a second."
    parts = [f"{head} {report.card};\n{report.machine}."]
    parts += [text for table in tables if (text := "\n".join(table))]
    parts += [f"Didn't run: {failure}" for failure in report.failed]
    return "\n\n".join(parts) + "\n"


def summary(report: CardReport) -> str:
    """A table of the rates alone."""
    lines = ["| model | answers at once | mlx-lm's batch | Bulkhead | ratio |"]
    lines.append(f"| --- |{' ---: |' * 4}")
    for measured in report.streams:
        raw, ours = (_rate(generations) for generations in (measured.raw, measured.ours))
        ratio = _ratio(measured.ours, measured.raw)
        lines.append(
            f"| {measured.model} | {measured.streams} | {raw:,.0f} | {ours:,.0f} | {ratio:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _streams(report: CardReport) -> Iterator[str]:
    if not report.streams:
        return
    yield (
        "| model | streams | rounds | mlx-lm's batch | Bulkhead | ratio | target "
        "| last first token (s), mlx-lm | Bulkhead | ratio | target "
        "| sampled / mlx-lm's greedy | sampled / greedy | target |"
    )
    yield f"| --- |{' ---: |' * 13}"
    for measured in report.streams:
        raw, ours = (_rate(generations) for generations in (measured.raw, measured.ours))
        lasts = [_last(generations) for generations in (measured.raw, measured.ours)]
        bound = 0.9 if measured.streams >= _MANY else 0.95
        first, sampled = f"{lasts[1] / lasts[0]:.2f} | ", "| | "
        if measured.streams >= _MANY:
            first = _judged(lasts[1] / lasts[0], _MOST, 1.3)
        if measured.sampled:
            of_greedy = _judged(_ratio(measured.sampled, measured.ours), _LEAST, 0.95)
            sampled = f"{_ratio(measured.sampled, measured.raw):.2f} | {of_greedy}"
        yield (
            f"| {measured.model} | {measured.streams} | {len(measured.ours)} "
            f"| {raw:,.0f} | {ours:,.0f} "
            f"| {_judged(_ratio(measured.ours, measured.raw), _LEAST, bound)} "
            f"| {lasts[0]:.2f} | {lasts[1]:.2f} | {first} | {sampled} |"
        )


def _ratio(generations: list[Generation], others: list[Generation]) -> float:
    return _rate(generations) / _rate(others)


def _rate(generations: list[Generation]) -> float:
    return median(generation.tokens_per_s for generation in generations)


def _last(generations: list[Generation]) -> float:
    """The seconds until every stream has its first token."""
    return median(max(generation.first_token_s) for generation in generations)


def _rows(report: CardReport) -> Iterator[str]:
    if not report.rows:
        return
    yield "| a row without guesses | rounds | mlx-lm's loop | Bulkhead | ratio | target |"
    yield f"| --- |{' ---: |' * 5}"
    for row in report.rows:
        ratio = median(row.ours) / median(row.raw)
        yield (
            f"| {row.model}, behind {row.tokens:,} tokens | {len(row.ours)} "
            f"| {median(row.raw):.0f} | {median(row.ours):.0f} "
            f"| {_judged(ratio, _LEAST, 0.97)} |"
        )


def _first(report: CardReport) -> Iterator[str]:
    if not report.first:
        return
    yield (
        "| no compiled kernels | first token (s), mlx-lm | Bulkhead | ratio | target "
        "| 32 sampled streams, first and next (tokens/s) |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for minute in report.first:
        rates = ", ".join(f"{rate:,.0f}" for rate in minute.sampled)
        yield (
            f"| {minute.model} | {minute.raw_s:.1f} | {minute.ours_s:.1f} "
            f"| {_judged(minute.ours_s / minute.raw_s, _MOST, 1.3)} | {rates} |"
        )


def _edits(report: CardReport) -> Iterator[str]:
    if not report.edits:
        return
    yield "| a session that edits files | rounds | seconds | of the best other | target | exact |"
    yield f"| --- |{' ---: |' * 5}"
    best_s = min(
        (median(edits.seconds) for edits in report.edits if edits.server != BULKHEAD), default=None
    )
    for edits in report.edits:
        seconds, ratio = median(edits.seconds), "| "
        if edits.server == BULKHEAD and best_s is not None:
            ratio = _judged(seconds / best_s, _MOST, 0.7)
        yield (
            f"| {edits.server} | {len(edits.seconds)} | {seconds:.1f} | {ratio} "
            f"| {edits.expected:.0%} |"
        )


def _judged(ratio: float, sign: str, bound: float) -> str:
    """The cells of a ratio and of its target."""
    met = ratio >= bound if sign == _LEAST else ratio <= bound
    shown = f"{ratio:.2f}"
    if not met:
        # With two digits some misses would look like the target.
        shown = f"**{ratio:.3f}**" if float(shown) == bound else f"**{shown}**"
    return f"{shown} | {sign} {bound:g}"
