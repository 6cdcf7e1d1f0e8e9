"""What is asked without a prompt: that a model be loaded, or unloaded."""

from __future__ import annotations

from starlette.responses import Response

from gateway.http.count_format import CountFormat
from gateway.http.framing import LINES
from gateway.http.model_call import ModelCall, keep_alive_s
from gateway.http.ollama.bodies import AnswerBody
from gateway.http.ollama.writer import Content, Figures, written
from gateway.http.sampling import GenerationBody, generate_message
from gateway.system.refusal import Refusal
from protocol.answers import Usage
from protocol.prompts import TextPrompt


def load(call: ModelCall, body: AnswerBody, *, chat: bool) -> Response:
    """An object that says what was done. It waits for the load as every request does: as one that
    nothing is computed for.

    Raises:
        Refusal: keep_alive can't be read, or isn't the caller's to choose.
    """
    unload = keep_alive_s(body.keep_alive) == 0
    if unload and not call.caller.admin:
        raise Refusal(
            "permission_denied",
            "Only the admin key may unload a model, since others may be using it. It is "
            "unloaded by itself after its ttl_s, or when its memory is needed.",
            param="keep_alive",
        )

    def done(usage: Usage | None = None) -> bytes:
        figures = Figures(done_reason="unload" if unload else "load")
        return written(body.model, Content(), figures, chat=chat)

    if unload and call.compartment.over:
        return Response(done(), media_type="application/json")
    generation = GenerationBody(model=call.model.id, max_tokens=0, keep_alive=body.keep_alive)
    nothing = generate_message(generation, TextPrompt("Hello"), generation.limit)
    requests = call.requests(generation, [nothing], "prompt")
    streams = body.stream is not False
    return call.answer(requests, CountFormat(done), stream=streams, framing=LINES)
