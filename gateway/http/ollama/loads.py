"""What is asked without a prompt: that a model be loaded, or unloaded."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.http.answer import Answer, Choice
from gateway.http.callers import caller_of
from gateway.http.framing import LINES
from gateway.http.ollama.bodies import AnswerBody
from gateway.http.ollama.writer import Content, DoneReason, Figures, written
from gateway.http.sampling import GenerationBody, generate_message, keep_alive_s, new_requests
from gateway.models.choices import submit_all
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.requests.request import Piece
from gateway.system.refusal import Refusal
from protocol.answers import Usage
from protocol.prompts import TextPrompt


class Load:
    """The writer of such an answer, too: an object that says what was done."""

    def __init__(
        self, request: HttpRequest, compartment: Compartment, body: AnswerBody, *, chat: bool
    ) -> None:
        """Raises: Refusal: keep_alive can't be read, or isn't the caller's to choose."""
        self._request = request
        self._compartment = compartment
        self._body = body
        self._chat = chat
        unload = keep_alive_s(body.keep_alive) == 0
        if unload and not caller_of(request).admin:
            raise Refusal(
                "permission_denied",
                "Only the admin key may unload a model, since others may be using it. It is "
                "unloaded by itself after its ttl_s, or when its memory is needed.",
                param="keep_alive",
            )
        self._reason: DoneReason = "unload" if unload else "load"

    async def answer(self) -> Response:
        """Waits for the load as every request does: one that nothing is computed for."""
        if self._reason == "unload" and self._compartment.over:
            return Response(self._object(), media_type="application/json")
        fleet: Fleet = self._request.app.state.fleet
        body = GenerationBody(model=self._compartment.model.id, keep_alive=self._body.keep_alive)
        nothing = generate_message(body, TextPrompt("Hello"), 0)
        requests = new_requests(self._request, fleet, body, [nothing], "prompt")
        submit_all(fleet, self._compartment, requests)
        streams = self._body.stream is not False
        return Answer(self._compartment, requests, self, stream=streams, framing=LINES)

    def opening(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, piece: Piece) -> bytes:
        return b""

    def closing(self, usage: Usage) -> bytes:
        return self._object() + b"\n"

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return self._object()

    def _object(self) -> bytes:
        figures = Figures(done_reason=self._reason)
        return written(self._body.model, Content(), figures, chat=self._chat)
