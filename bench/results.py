"""What is measured: plain records, as `--json` writes them. Seconds and bytes throughout."""

from __future__ import annotations

from msgspec import Struct

RAW = "mlx-lm"
BULKHEAD = "Bulkhead"
SERVER = "mlx_lm.server"

# Bulkhead's processes; the other two subjects have one each, of the same name.
GATEWAY = "gateway"
WORKER = "worker"


class FailedError(Exception):
    """Something didn't run, so there is nothing to report; the text says what."""


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
            each for each in self.rounds if (each.subject, each.streams, each.sampled) == wanted
        ]

    @property
    def stream_counts(self) -> list[int]:
        return sorted({each.streams for each in self.rounds})
