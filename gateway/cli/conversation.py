"""The messages so far, and how to get one more."""

from __future__ import annotations

import contextlib

from gateway.cli.answer import Ending, Parameters, TextMessage, stream_answer
from gateway.cli.client import GatewayClient
from gateway.cli.transcript import Transcript


class Conversation:
    """`system`, `parameters` and `model_id` may be changed between answers."""

    def __init__(
        self, gateway: GatewayClient, model_id: str, system: str | None, parameters: Parameters
    ) -> None:
        self.model_id = model_id
        self.system = system
        self.parameters = parameters
        self._gateway = gateway
        self._messages: list[TextMessage] = []
        # What was asked last without getting an answer.
        self._unanswered: str | None = None

    def ask(self, text: str, transcript: Transcript) -> None:
        """Print the answer as it comes; the messages get question and answer, or neither.

        An answer that is interrupted counts as far as it came.

        Raises:
            CommandError: there was no answer, or it broke off.
        """
        question = TextMessage("user", text)
        self._unanswered = text
        pieces: list[str] = []
        try:
            cut_off = self._stream(question, pieces, transcript)
        except KeyboardInterrupt:
            self._keep(question, pieces)
            raise
        finally:
            transcript.close()
        self._keep(question, pieces)
        if cut_off:
            transcript.note("(cut off: it has as many tokens as it may)")

    def retry(self, transcript: Transcript) -> bool:
        """Ask the last question once more, for another answer; False if there is none. An answer
        that was there stays if no other comes.

        Raises:
            CommandError: as `ask`.
        """
        if self._unanswered is not None:
            self.ask(self._unanswered, transcript)
            return True
        if not self._messages:
            return False
        before = self._messages
        self._messages = before[:-2]
        try:
            self.ask(before[-2].content, transcript)
        finally:
            if len(self._messages) < len(before):
                self._messages = before
                self._unanswered = None
        return True

    def clear(self) -> None:
        """Forget everything that was said; what was set stays."""
        self._messages = []
        self._unanswered = None

    def _stream(self, question: TextMessage, pieces: list[str], transcript: Transcript) -> bool:
        """Whether the answer ended where it had as many tokens as it may."""
        cut_off = False
        told_state: str | None = None

        def tell() -> None:
            """What the wait is for, once for each state."""
            nonlocal told_state
            state = self._gateway.model(self.model_id).state
            if state not in (told_state, "ready"):
                told_state = state
                what = "another worker goes on with the answer" if pieces else "waiting"
                transcript.note(f"({what}: {self.model_id} is {state}...)")

        system = [] if self.system is None else [TextMessage("system", self.system)]
        messages = [*system, *self._messages, question]
        streamed = stream_answer(self._gateway, self.model_id, messages, self.parameters, tell)
        with contextlib.closing(streamed) as answer:
            for each in answer:
                if not isinstance(each, Ending):
                    transcript.write(each)
                    if each.kind == "text":
                        pieces.append(each.text)
                else:
                    cut_off = each.reason == "length"
        return cut_off

    def _keep(self, question: TextMessage, pieces: list[str]) -> None:
        if pieces:
            self._messages += [question, TextMessage("assistant", "".join(pieces))]
            self._unanswered = None
