"""What several steps added to requests becomes one message."""

from __future__ import annotations

from typing import Final

from protocol.answers import Delta, Output
from protocol.parts import merged

# With log probabilities a token takes a kilobyte, of the megabyte that a message may have.
_MOST_TOKENS: Final = 256


class Outbox:
    """Deltas that haven't been sent yet, by request, in the order in which requests came."""

    def __init__(self) -> None:
        self._step = 0
        self._deltas: dict[str, list[Delta]] = {}
        self._count = 0

    def fits(self, tokens: int) -> bool:
        """Whether a step of so many can be sent along; alone any step can."""
        return self._count + tokens <= _MOST_TOKENS

    def add(self, step: int, delta: Delta) -> None:
        self._step = step
        self._deltas.setdefault(delta.request_id, []).append(delta)
        self._count += 1

    def take(self) -> Output | None:
        """All of it, a delta for each request; None: there is nothing."""
        if not self._deltas:
            return None
        output = Output(step=self._step, deltas=tuple(map(_together, self._deltas.values())))
        self._deltas, self._count = {}, 0
        return output


def _together(deltas: list[Delta]) -> Delta:
    last = deltas[-1]
    if len(deltas) == 1:
        return last
    return Delta(
        last.request_id,
        tuple(token_id for each in deltas for token_id in each.token_ids),
        tuple(merged(part for each in deltas for part in each.parts)),
        last.finish_reason,
        last.usage,
        last.stop_sequence,
        next((each.unenforced for each in deltas if each.unenforced), ()),
    )
