"""What is done with models' files in Ollama's API: here other ways lead to it."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.bodies import read_json
from gateway.http.framing import LINES
from gateway.http.ollama.names import call_of
from gateway.http.openapi.operation import NAMES_MODEL, Described, Operation
from gateway.system.refusal import Refusal

_ADVICE: Final = {
    "/api/pull": "download it with `bulkhead pull MODEL`",
    "/api/push": "models are not uploaded from here",
    "/api/create": "name the folder, an adapter or other options in the configuration; what is to "
    "be downloaded, `bulkhead pull MODEL` gets",
    "/api/copy": "give it another name by `aliases` in the configuration; what is to be "
    "downloaded, `bulkhead pull MODEL` gets",
    "/api/delete": "remove it with `bulkhead rm MODEL`; `bulkhead pull MODEL` gets it again",
}


class PullBody(Struct):
    """`name` is what older clients send."""

    model: str | None = None
    name: str | None = None


class Pulled(Struct):
    status: str = "success"


async def pull(request: Request) -> Response:
    """A model that is here needn't be downloaded; Codex asks for it all the same."""
    body = await read_json(request, PullBody)
    try:
        call_of(request, body.model or body.name)
    except Refusal:
        return await elsewhere(request)
    return Response(msgspec.json.encode(Pulled()) + b"\n", media_type=LINES.media_type.decode())


async def elsewhere(request: Request) -> Response:
    path = request.url.path
    raise Refusal("invalid_request_error", f"{path} is not supported by Bulkhead: {_ADVICE[path]}.")


_PULL: Final = Operation(
    summary="Done for a model that is here, else refused",
    tag="Ollama",
    body=PullBody,
    answer=Pulled,
    refusals=NAMES_MODEL,
)
_REFUSED: Final = Operation(summary="Refused, with what to do instead", tag="Ollama")

routes = [
    Described("/api/pull", pull, _PULL, method="POST"),
    *(
        Described(path, elsewhere, _REFUSED, method="DELETE" if path == "/api/delete" else "POST")
        for path in _ADVICE
        if path != "/api/pull"
    ),
]
