"""What is counted of HTTP requests, each once it is over. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final, NamedTuple

from gateway.system.tasks import Histogram

WHOLE_S: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0),
)


class Ended(NamedTuple):
    """A request by its route, its model's id ("": it has none) and what became of it."""

    route: str
    model_id: str
    outcome: str


class HttpMeter:
    """`whole_s` has the requests of each model that were answered in full."""

    def __init__(self) -> None:
        self.ended: Counter[Ended] = Counter()
        self.whole_s: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(WHOLE_S))

    def end(self, ended: Ended, seconds: float) -> None:
        self.ended[ended] += 1
        if ended.model_id and ended.outcome == "ok":
            self.whole_s[ended.model_id].observe(seconds)
