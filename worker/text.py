"""Tokens to text, for one request."""

from __future__ import annotations

from typing import Any

from mlx_lm.generate import TextStateMachine

from worker.detokenizer import Detokenizer


class TextStream:
    """Detokenizes one request and ends it at a stop sequence, even one that straddles tokens."""

    def __init__(self, detokenizer: Detokenizer, stop: tuple[str, ...]) -> None:
        self._detokenizer = detokenizer
        self._stops: Any = None
        if stop:
            machine = TextStateMachine({"normal": [(each, None) for each in stop]})
            self._stops = machine.make_state()
        self.stopped = False

    def add(self, token_id: int) -> str:
        """Text that is certain now; `stopped` is set once a stop sequence is complete."""
        self._detokenizer.add_token(token_id)
        return self._emit(self._detokenizer.last_segment)

    def finish(self) -> str:
        """What was held back: an unfinished character, the beginning of a stop sequence."""
        if self.stopped:
            return ""
        self._detokenizer.finalize()
        text = self._emit(self._detokenizer.last_segment)
        if self._stops is not None and not self.stopped:
            self._stops, rest, _ = TextStateMachine.flush(self._stops)
            text += rest
        return text

    def _emit(self, text: str) -> str:
        if self._stops is None or not text:
            return text
        self._stops, emitted, state = TextStateMachine.step(self._stops, text)
        self.stopped = state is None
        return str(emitted)
