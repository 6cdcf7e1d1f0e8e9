"""`python -m bench.bare`: uvicorn alone with a function that sends events, for `bench.tokens`.

`GET /EVENTS/BYTES/SECONDS` sends so many events of this size, so long after each other.
"""

from __future__ import annotations

import asyncio
import socket

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send


async def app(scope: Scope, _receive: Receive, send: Send) -> None:
    events, size, every_s = scope["path"].strip("/").split("/")
    event = b"data: " + b"x" * (int(size) - 8) + b"\n\n"
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(int(events) - 1):
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(float(every_s))
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", access_log=False, log_config=None
    )
    uvloop.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
