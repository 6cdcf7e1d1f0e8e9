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
    Target,
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
        _rates(report, "Tokens/s, streams", sampled=False),
        _rates(
            report, "Sampled tokens/s, each stream with settings of its own, streams", sampled=True
        ),
        _table(
            "Sampled / greedy, streams",
            _SUBJECTS,
            report.stream_counts,
            lambda streams: [
                f"{sampled_share(report, subject, streams):.2f}" for subject in _SUBJECTS
            ],
        ),
        _table(
            "Time to first token (ms), streams",
            _SUBJECTS,
            report.stream_counts,
            lambda streams: [_ms(first_token_s(report, text, streams)) for text in _SUBJECTS],
        ),
        _health(report),
        _table(
            "CPU time per token (µs), streams",
            [f"{BULKHEAD}, {GATEWAY}", f"{BULKHEAD}, {WORKER}", SERVER, RAW],
            report.stream_counts,
            lambda streams: [
                f"{cpu_us_per_token(report, *process, streams):.0f}" for process in _PROCESSES
            ],
        ),
        f"The gateway holds {report.gateway_memory_bytes / 2**20:.1f} MiB of memory.",
        _targets(report),
    ]
    return "\n\n".join(sections) + "\n"


def _rates(report: Report, title: str, *, sampled: bool) -> str:
    def cells(streams: int) -> list[str]:
        rates = [tokens_per_s(report, subject, streams, sampled=sampled) for subject in _SUBJECTS]
        ratios = [speed_ratio(report, text, streams, sampled=sampled) for text in (RAW, SERVER)]
        return [*(f"{rate:.0f}" for rate in rates), *(f"{ratio:.2f}" for ratio in ratios)]

    heads = [*_SUBJECTS, f"{BULKHEAD} / {RAW}", f"{BULKHEAD} / {SERVER}"]
    return _table(title, heads, report.stream_counts, cells)


def _health(report: Report) -> str:
    def cells(streams: int) -> list[str]:
        times_s = []
        for text in (BULKHEAD, SERVER):
            times_s += [health_p99_s(report, text, streams), health_s(report, text, streams)[-1]]
        return [*map(_ms, times_s), f"{health_ratio(report, streams):.2f}"]

    heads = [f"{text}, {which}" for text in (BULKHEAD, SERVER) for which in ("p99", "slowest")]
    return _table(
        "GET /health under load (ms), streams",
        [*heads, "ratio of p99"],
        report.stream_counts,
        cells,
    )


def _targets(report: Report) -> str:
    def cells(target: Target) -> list[str]:
        bound = f"{'≤' if target.at_most else '≥'} {target.bound:g}"
        return [bound, f"{target.ratio:.2f}", "met" if target.met else "**missed**"]

    return _table("Target", ["bound", "measured", ""], targets(report), cells)


def _conditions(report: Report) -> str:
    rounds = len({item.number for item in report.rounds})
    before, after = report.load_average
    idle = ", ".join(f"{name} {share:.1%}" for name, share in report.idle_cpu.items())
    return (
        f"{report.machine}. Model {report.model}, "
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
