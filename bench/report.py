"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from bench.results import (
    BULKHEAD,
    GATEWAY,
    RAW,
    SERVER,
    WORKER,
    Report,
    cpu_us_per_token,
    first_token_s,
    health_p99_s,
    health_ratio,
    health_s,
    sampled_share,
    speed_ratio,
    targets,
    tokens_per_s,
)

T = TypeVar("T")

_SUBJECTS: Final = (RAW, BULKHEAD, SERVER)
_PROCESSES: Final = ((BULKHEAD, GATEWAY), (BULKHEAD, WORKER), (SERVER, SERVER), (RAW, RAW))


def render(report: Report) -> str:
    sections = [
        _conditions(report),
        _table(
            "Tokens/s, streams",
            [*_SUBJECTS, f"{BULKHEAD} / {RAW}", f"{BULKHEAD} / {SERVER}"],
            report.stream_counts,
            lambda streams: [
                *(f"{tokens_per_s(report, each, streams):.0f}" for each in _SUBJECTS),
                *(f"{speed_ratio(report, each, streams):.2f}" for each in (RAW, SERVER)),
            ],
        ),
        _table(
            "Sampled tokens/s, each stream with settings of its own, streams",
            [*_SUBJECTS, f"{BULKHEAD} / {RAW}", f"{BULKHEAD} / {SERVER}"],
            report.stream_counts,
            lambda streams: [
                *(f"{tokens_per_s(report, each, streams, sampled=True):.0f}" for each in _SUBJECTS),
                *(
                    f"{speed_ratio(report, each, streams, sampled=True):.2f}"
                    for each in (RAW, SERVER)
                ),
            ],
        ),
        _table(
            "Sampled / greedy, streams",
            _SUBJECTS,
            report.stream_counts,
            lambda streams: [f"{sampled_share(report, each, streams):.2f}" for each in _SUBJECTS],
        ),
        _table(
            "Time to first token (ms), streams",
            _SUBJECTS,
            report.stream_counts,
            lambda streams: [_ms(first_token_s(report, each, streams)) for each in _SUBJECTS],
        ),
        _table(
            "GET /health under load (ms), streams",
            [
                *(
                    f"{each}, {which}"
                    for each in (BULKHEAD, SERVER)
                    for which in ("p99", "slowest")
                ),
                "ratio of p99",
            ],
            report.stream_counts,
            lambda streams: [
                _ms(health_p99_s(report, BULKHEAD, streams)),
                _ms(health_s(report, BULKHEAD, streams)[-1]),
                _ms(health_p99_s(report, SERVER, streams)),
                _ms(health_s(report, SERVER, streams)[-1]),
                f"{health_ratio(report, streams):.2f}",
            ],
        ),
        _table(
            "CPU time per token (µs), streams",
            [f"{BULKHEAD}, {GATEWAY}", f"{BULKHEAD}, {WORKER}", SERVER, RAW],
            report.stream_counts,
            lambda streams: [
                f"{cpu_us_per_token(report, *each, streams):.0f}" for each in _PROCESSES
            ],
        ),
        f"The gateway holds {report.gateway_memory_bytes / 2**20:.1f} MiB of memory.",
        _table(
            "Target",
            ["bound", "measured", ""],
            targets(report),
            lambda target: [
                f"{'≤' if target.at_most else '≥'} {target.bound:g}",
                f"{target.ratio:.2f}",
                "met" if target.met else "**missed**",
            ],
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _conditions(report: Report) -> str:
    machine = report.machine
    rounds = len({each.number for each in report.rounds})
    before, after = report.load_average
    idle = ", ".join(f"{name} {share:.1%}" for name, share in report.idle_cpu.items())
    return (
        f"{machine.processor}, {machine.cores} cores, {machine.system}; Python {machine.python}, "
        f"mlx {machine.mlx}, mlx-lm {machine.mlx_lm}. Model {report.model}, "
        f"{report.tokens_per_stream} tokens a stream, medians of {rounds} interleaved rounds "
        "(ratios: within each round). "
        f"Load average before the rounds {before:.1f}, after {after:.1f}. "
        f"One core's share that idle processes take: {idle}."
    )


def _table(
    first: str, others: Sequence[str], keys: Iterable[T], cells: Callable[[T], list[str]]
) -> str:
    """One row a key; the key stands in the first column."""
    head = [first, *others]
    lines = [head, ["---", *("---:" for _ in others)]]
    lines += [[str(key), *cells(key)] for key in keys]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
