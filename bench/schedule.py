"""Whose turn it is: subjects take turns within a round, so that the machine's moods hit all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from bench.load import Prompt
from bench.processes import cpu_s
from bench.prompts import FreshPrompts
from bench.results import Generation, Round
from bench.servers import MeasuredServer
from bench.settings import Sampled, sampled

# A load is repeated for so long while health is probed: some hundred probes a table cell.
_PROBED_S: Final = 2.0
_IDLE_S: Final = 5.0


class Subject(Protocol):
    name: str

    def processes(self) -> dict[str, int]: ...

    def generate(self, prompts: Sequence[Prompt], tokens: int) -> Generation: ...


class Schedule:
    """Rounds of every subject with every number of streams."""

    def __init__(
        self, subjects: Sequence[Subject], stream_counts: Sequence[int], tokens: int
    ) -> None:
        self._subjects = subjects
        self._stream_counts = stream_counts
        self._tokens = tokens
        self._prompts = FreshPrompts()

    def warm_up(self) -> None:
        """Load the models, and throw one round away."""
        for streams in self._stream_counts:
            for subject in self._subjects:
                subject.generate(self._prompts.take(streams), self._tokens)
                subject.generate(sampled(self._prompts.take(streams)), self._tokens)

    def idle_cpu(self) -> dict[str, float]:
        """The share of one core that each process takes while it is asked nothing."""
        pids: dict[str, int] = {}
        for subject in self._subjects:
            pids |= subject.processes()
        before = cpu_s(pids)
        time.sleep(_IDLE_S)
        after = cpu_s(pids)
        return {name: (after[name] - before[name]) / _IDLE_S for name in pids}

    def run(self, rounds: int, on_round: Callable[[Round], None]) -> Iterable[Round]:
        for number in range(rounds):
            for streams in self._stream_counts:
                for prompts in (
                    self._prompts.take(streams),
                    sampled(self._prompts.take(streams)),
                ):
                    for subject in self._subjects:
                        measured = self._turn(number, subject, prompts)
                        on_round(measured)
                        yield measured

    def _turn(self, number: int, subject: Subject, prompts: Sequence[Prompt]) -> Round:
        streams = len(prompts)
        pids = subject.processes()
        before = cpu_s(pids)
        generation = subject.generate(prompts, self._tokens)
        after = cpu_s(pids)
        health_s = []
        if isinstance(subject, MeasuredServer) and not isinstance(prompts, Sampled):
            health_s = subject.probe_health(
                lambda: self._prompts.take(streams), self._tokens, _PROBED_S
            )
        return Round(
            number=number,
            subject=subject.name,
            streams=streams,
            generation=generation,
            cpu_s={name: after[name] - before[name] for name in pids},
            health_s=health_s,
            sampled=isinstance(prompts, Sampled),
        )


def load_average() -> float:
    """Runnable processes over the last minute, ours included."""
    return os.getloadavg()[0]
