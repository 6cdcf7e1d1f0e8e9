"""The results of `python -m bench`: records, as `--json` writes them, the figures of its tables,
and the targets of the figures. Seconds and bytes throughout.

The machine's speed drifts, so a ratio of two subjects is the median of the ratios within each
round, where the two took turns, and not a ratio of medians.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from msgspec import Struct

RAW = "mlx-lm"
BULKHEAD = "Bulkhead"
SERVER = "mlx_lm.server"

# Bulkhead's processes; the other two subjects have one each, of the same name.
GATEWAY = "gateway"
WORKER = "worker"


class FailedError(Exception):
    """A part of the measurement didn't run, so there is nothing to report; the text says which."""


class Generation(Struct, frozen=True):
    """Streams that ran at once, from the first request to the last token.

    `first_token_s` has one entry a stream, each from that stream's own request.
    """

    tokens: int
    wall_s: float
    first_token_s: list[float]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s


class Round(Struct, frozen=True):
    """One subject's turn. `sampled`: each stream with settings of its own, otherwise greedy.

    `cpu_s` is the processor time of each of its processes during the generation. `health_s` are
    the latencies of health probes during another load like it, so that probes cost no tokens.
    """

    number: int
    subject: str
    streams: int
    generation: Generation
    cpu_s: dict[str, float]
    health_s: list[float]
    sampled: bool = False


class MeasuringMachine(Struct, frozen=True):
    processor: str
    cores: int
    system: str
    python: str
    mlx: str
    mlx_lm: str

    def __str__(self) -> str:
        return (
            f"{self.processor}, {self.cores} cores, {self.system}; Python {self.python}, "
            f"mlx {self.mlx}, mlx-lm {self.mlx_lm}"
        )


class Report(Struct, frozen=True):
    """`idle_cpu` is the share of one core that each process takes when nothing is asked of it.

    `load_average` is the system's, over one minute, before and after the rounds.
    """

    machine: MeasuringMachine
    model: str
    tokens_per_stream: int
    load_average: tuple[float, float]
    idle_cpu: dict[str, float]
    gateway_memory_bytes: int
    rounds: list[Round]

    def of(self, subject: str, streams: int, *, sampled: bool = False) -> list[Round]:
        """A subject's rounds with so many streams, by number."""
        wanted = (subject, streams, sampled)
        return [
            item for item in self.rounds if (item.subject, item.streams, item.sampled) == wanted
        ]

    @property
    def stream_counts(self) -> list[int]:
        return sorted({item.streams for item in self.rounds})


class Target(Struct, frozen=True):
    """A ratio and its bound: a least one, or with `at_most` a greatest one."""

    what: str
    ratio: float
    bound: float
    at_most: bool = False

    def __str__(self) -> str:
        return self.what

    @property
    def met(self) -> bool:
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound


def tokens_per_s(report: Report, subject: str, streams: int, *, sampled: bool = False) -> float:
    rounds = report.of(subject, streams, sampled=sampled)
    return median(item.generation.tokens_per_s for item in rounds)


def speed_ratio(report: Report, other: str, streams: int, *, sampled: bool = False) -> float:
    """Bulkhead's tokens per second in relation to another subject's."""
    ours = report.of(BULKHEAD, streams, sampled=sampled)
    return _ratio(ours, report.of(other, streams, sampled=sampled))


def sampled_share(report: Report, subject: str, streams: int) -> float:
    """A subject's sampled tokens per second in relation to its greedy ones."""
    return _ratio(report.of(subject, streams, sampled=True), report.of(subject, streams))


def _ratio(rounds: list[Round], others: list[Round]) -> float:
    return median(
        one.generation.tokens_per_s / other.generation.tokens_per_s
        for one, other in zip(rounds, others, strict=True)
    )


def first_token_s(report: Report, subject: str, streams: int) -> float:
    """The median stream's, of the median round."""
    return median(median(item.generation.first_token_s) for item in report.of(subject, streams))


def health_s(report: Report, subject: str, streams: int) -> list[float]:
    """The probes of all rounds, quickest first."""
    return sorted(latency for item in report.of(subject, streams) for latency in item.health_s)


def health_p99_s(report: Report, subject: str, streams: int) -> float:
    ordered = health_s(report, subject, streams)
    return ordered[math.ceil(0.99 * len(ordered)) - 1]


def health_ratio(report: Report, streams: int) -> float:
    ours, theirs = (health_p99_s(report, text, streams) for text in (BULKHEAD, SERVER))
    return ours / theirs


def cpu_us_per_token(report: Report, subject: str, process: str, streams: int) -> float:
    """Over all rounds together: one round's time is a few clock ticks."""
    rounds = report.of(subject, streams)
    cpu_s = sum(item.cpu_s[process] for item in rounds)
    return cpu_s * 1e6 / sum(item.generation.tokens for item in rounds)


def targets(report: Report) -> Iterator[Target]:
    """Batching is where a second process costs most against mlx-lm, and gains against its server;
    a single stream only has to keep up.
    """
    for streams in report.stream_counts:
        if streams > 1:
            ratio = speed_ratio(report, RAW, streams)
            yield Target(f"{BULKHEAD} / {RAW}, {_streams(streams)}", ratio, 0.9)
        yield Target(
            f"{BULKHEAD} / {SERVER}, {_streams(streams)}",
            speed_ratio(report, SERVER, streams),
            0.9 if streams == 1 else 1.15,
        )
        yield Target(
            f"{BULKHEAD}, sampled / greedy, {_streams(streams)}",
            sampled_share(report, BULKHEAD, streams),
            0.95,
        )
        yield Target(
            f"p99 of GET /health, {BULKHEAD} / {SERVER}, {_streams(streams)}",
            health_ratio(report, streams),
            1.25,
            at_most=True,
        )


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"
