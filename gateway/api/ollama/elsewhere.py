"""What is done with models' files in Ollama's API: here other ways lead to it."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.openapi.operation import Described, Operation
from gateway.dispatch.refusal import Refusal

_ADVICE: Final = {
    "/api/pull": "download it with `bulkhead pull MODEL`",
    "/api/push": "models are not uploaded from here",
    "/api/create": "name the folder, an adapter or other options in the configuration; what is to "
    "be downloaded, `bulkhead pull MODEL` gets",
    "/api/copy": "give it another name by `aliases` in the configuration; what is to be "
    "downloaded, `bulkhead pull MODEL` gets",
    "/api/delete": "remove it with `bulkhead rm MODEL`; `bulkhead pull MODEL` gets it again",
}


async def elsewhere(request: Request) -> Response:
    path = request.url.path
    raise Refusal("invalid_request_error", f"{path} is not supported by Bulkhead: {_ADVICE[path]}.")


_REFUSED: Final = Operation(summary="Refused, with what to do instead", tag="Ollama")

routes = [
    Described(path, elsewhere, _REFUSED, method="DELETE" if path == "/api/delete" else "POST")
    for path in _ADVICE
]
