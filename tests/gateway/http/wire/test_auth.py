"""Who is let in, with real keys in real files and an application that answers at once."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

from gateway.access.api_key import KeyTerms
from gateway.access.key_file import KeyFile, KeyFileError
from gateway.access.keys import ApiKeys
from gateway.http.app import ROUTES
from gateway.http.wire.access_log import (
    AccessLog,
    Ended,
    HttpMeter,
    note_usage,
    record_of,
)
from gateway.http.wire.auth import AuthMiddleware, caller_of
from gateway.http.wire.finished import FinishedRequests
from gateway.system.state_dir import StateDir
from gateway.system.tasks import Faults
from protocol.answers import Usage

WORK = "/v1/chat/completions"


class World:
    """`waiting` requests have begun and go on once `go` is set."""

    def __init__(self, state_dir: StateDir, keys: ApiKeys) -> None:
        self.state_dir = state_dir
        self.file = KeyFile(state_dir.keys_path)
        self.keys = keys
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.ended = 0
        self.streams = asyncio.Semaphore(0)
        self.meter = HttpMeter()
        self.faults = Faults()
        log = AccessLog(
            AuthMiddleware(self._app, keys),
            self.meter,
            FinishedRequests(),
            ROUTES,
            None,
            self.faults,
        )
        transport = httpx.ASGITransport(log)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope)
        query = request.query_params
        try:
            if "wait" in query:
                self.began.set()
                if query["wait"] == "stream":
                    await StreamingResponse(self._events(), media_type="text/event-stream")(
                        scope, receive, send
                    )
                    return
                await self.go.wait()
            if "fail" in query:
                raise OverflowError("too large")
            if "tokens" in query:
                note_usage(scope, Usage(int(query["tokens"]), 0))
            caller = caller_of(request)
            key = record_of(request.scope).key
            body = {"name": caller.name, "admin": caller.admin, "key": key, "owner": caller.owner}
            await JSONResponse(body)(scope, receive, send)
        finally:
            self.ended += 1

    async def _events(self) -> AsyncIterator[bytes]:
        self.streams.release()
        yield b"data: 1\n\n"
        await self.go.wait()
        yield b"data: 2\n\n"

    async def add(self, name: str, **terms: Any) -> dict[str, str]:
        """The headers of a new key."""
        _, secret = await self.keys.add(name, KeyTerms(**terms))
        return {"authorization": f"Bearer {secret}"}

    @property
    def admin(self) -> dict[str, str]:
        return {"x-api-key": self.state_dir.admin_key_path.read_text().strip()}


@pytest.fixture
def state_dir(tmp_path: Path) -> StateDir:
    folder = StateDir(tmp_path / "state")
    folder.path.mkdir(0o700)
    return folder


@pytest.fixture
async def world(state_dir: StateDir) -> AsyncIterator[World]:
    world = World(state_dir, ApiKeys(state_dir, exposed=False))
    async with world.client:
        yield world


def _code(response: httpx.Response) -> tuple[int, str | None]:
    """Ollama's envelope has none."""
    error = response.json().get("error")
    return response.status_code, error["code"] if isinstance(error, dict) else None


async def test_without_keys_everybody_may_do_everything(world: World) -> None:
    answer = await world.client.get("/admin/v1/status", headers={"authorization": "Bearer none"})
    assert answer.json() == {"name": None, "admin": True, "key": None, "owner": ""}


async def test_with_a_key_nothing_is_open(world: World) -> None:
    laptop = await world.add("laptop")
    assert _code(await world.client.get("/api/tags")) == (401, None)
    for path in ("/v1/models", WORK, "/nowhere"):
        answer = await world.client.get(path)
        assert _code(answer) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await world.client.get(path, headers=laptop)).json()["name"] == "laptop"
    wrong = {"authorization": laptop["authorization"][:-1] + "!"}
    assert _code(await world.client.get("/v1/models", headers=wrong)) == (
        401,
        "invalid_api_key",
    )


async def test_refused_request_is_counted_at_its_route(world: World) -> None:
    await world.add("laptop")
    limited = await world.add("limited", rpm=1)
    for method, path, headers in (
        ("POST", WORK, {}),
        ("DELETE", WORK, {}),
        ("GET", "/v1/models/org/m", {}),
        ("POST", "/admin/v1/models/org/m/load", limited),
        ("POST", WORK, limited),
        ("POST", WORK, limited),
        ("GET", "/nowhere", {}),
        ("GET", "/admin/v1/nowhere", {}),
    ):
        await world.client.request(method, path, headers=headers)
    assert world.meter.ended == {
        Ended(WORK, "", "invalid_api_key"): 2,
        Ended("/v1/models/{model_id:path}", "", "invalid_api_key"): 1,
        Ended("/admin/v1/models/{model_id:path}/load", "", "permission_denied"): 1,
        Ended(WORK, "", "ok"): 1,
        Ended(WORK, "", "rate_limit_exceeded"): 1,
        Ended("other", "", "invalid_api_key"): 2,
    }


async def test_open_path_shows_stranger(world: World) -> None:
    laptop = await world.add("laptop")
    for headers in ({}, {"authorization": "Bearer wrong"}):
        answer = await world.client.get("/health", headers=headers)
        assert answer.json() == {"name": None, "admin": False, "key": None, "owner": ""}
    assert (await world.client.get("/health", headers=laptop)).json()["name"] == "laptop"


async def test_the_admin_key_alone_is_for_operators(world: World) -> None:
    laptop = await world.add("laptop")
    for path in ("/admin/v1/status", "/admin/v1/models/demo/kill", "/metrics", "/admin"):
        assert _code(await world.client.post(path)) == (401, "invalid_api_key")
        assert _code(await world.client.post(path, headers=laptop)) == (
            403,
            "permission_denied",
        )
        answer = await world.client.post(path, headers=world.admin)
        account = answer.json()
        assert (account["admin"], {account[name] for name in ("name", "key", "owner")}) == (
            True,
            {"admin"},
        )


# What a key that reads gets, of all routes: each new route is the operator's until it stands here.
READ = {
    "/admin/v1/events",
    "/admin/v1/history",
    "/admin/v1/keys",
    "/admin/v1/live",
    "/admin/v1/models/{model_id:path}/check",
    "/admin/v1/pulls",
    "/admin/v1/requests",
    "/admin/v1/requests/finished",
    "/admin/v1/status",
    "/admin/v1/usage",
    "/api/ps",
    "/api/tags",
    "/api/version",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/",
    "/v1/models/{model_id:path}",
}
# What everybody gets.
OPEN = {
    ("DELETE", "/ui/session"),
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/ui"),
    ("GET", "/ui/{path:path}"),
    ("POST", "/ui/session"),
}


async def test_a_key_that_reads_reads_and_does_nothing_else(world: World) -> None:
    board = await world.add("board", reads=True)
    got: set[tuple[str, str]] = set()
    for route in ROUTES:
        path = route.path
        # Ids with slashes, as they could look like something that is read.
        address = re.sub(r"\{\w+(:\w+)?\}", "v1/status", path)
        methods = {*(route.methods or ())} - {"HEAD"}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", *methods}:
            answer = await world.client.request(method, address, headers=board)
            if answer.status_code == 200:
                got |= {(method, path)} if method in methods else set()
            else:
                assert answer.status_code == 403, (method, path)
                assert "only reads" in answer.text
    assert got == {*(("GET", text) for text in READ), *OPEN}


@pytest.mark.parametrize(
    "path",
    [
        *("/admin/v1/logs", "/admin/v1/models/demo/logs", "/admin/v1/models/demo/estimate"),
        *("/admin/v1/status/", "//admin/v1/status", "/metrics/x", "/admin/v1/keys/board"),
        *("/nowhere", "/servers/demo/x", "/v1/responses/resp_1", "/admin/v1/requests/x"),
    ],
)
async def test_path_near_to_readable_path_is_not_readable(world: World, path: str) -> None:
    board = await world.add("board", reads=True)
    answer = await world.client.get(path, headers=board)
    assert _code(answer) == (403, "permission_denied")


async def test_a_session_of_the_page_is_the_operator(world: World) -> None:
    await world.add("laptop")
    code = world.keys.sign_ins.code(time.monotonic())
    secret = world.keys.sign_ins.exchange(code, time.monotonic())
    page = {"authorization": f"Bearer {secret}"}
    answer = await world.client.post("/admin/v1/reload", headers=page)
    assert (answer.json()["admin"], answer.json()["name"]) == (True, "admin")
    following = asyncio.create_task(world.client.get("/admin/v1/live?wait=stream", headers=page))
    async with world.streams:
        assert world.keys.sign_ins.end((secret or "").encode(), time.monotonic())
        await world.keys.look()
        assert "The page's session is over." in (await following).text
    assert _code(await world.client.get("/metrics", headers=page)) == (401, "invalid_api_key")


async def test_errors_have_the_envelope_of_their_path(world: World) -> None:
    await world.add("laptop")
    answer = await world.client.post("/v1/messages")
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "authentication_error"


async def test_expired_keys_open_nothing(world: World) -> None:
    guest = await world.add("guest", expires_at=time.time() - 1)
    answer = await world.client.get("/v1/models", headers=guest)
    assert _code(answer) == (401, "invalid_api_key")
    assert "expired" in answer.json()["error"]["message"]


async def test_key_limits_requests_per_minute(world: World) -> None:
    laptop = await world.add("laptop", rpm=2)
    for left in ("1", "0"):
        answer = await world.client.post(WORK, headers=laptop)
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-remaining-requests"] == left
    refused = await world.client.post(WORK, headers=laptop)
    assert _code(refused) == (429, "rate_limit_exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    # Questions that are answered from what is known are no work.
    assert (await world.client.get("/v1/models", headers=laptop)).status_code == 200
    # Nor has another key less for it.
    phone = await world.add("phone", rpm=2)
    assert (await world.client.post(WORK, headers=phone)).status_code == 200


async def test_key_limits_tokens_per_minute(world: World) -> None:
    laptop = await world.add("laptop", tpm=100)
    for tokens, left in ((60, "100"), (60, "40")):
        answer = await world.client.post(f"{WORK}?tokens={tokens}", headers=laptop)
        assert answer.headers["x-ratelimit-remaining-tokens"] == left
    refused = await world.client.post(WORK, headers=laptop)
    assert _code(refused) == (429, "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_background_work_counts_too(world: World) -> None:
    laptop = await world.add("laptop", tpm=100)
    world.keys.spend(world.keys.all[0].owner, Usage(90, 20))
    assert (await world.client.post(WORK, headers=laptop)).status_code == 429
    assert world.keys.used()["laptop"][0].prompt_tokens == 90
    world.keys.spend("gone since", Usage(1, 1))


async def test_a_name_that_is_given_again_is_another_owner(world: World) -> None:
    """Nothing that was kept, or is being made, under the revoked key is the new one's."""
    owners = []
    for _ in range(2):
        headers = await world.add("laptop", tpm=100)
        owners.append((await world.client.get("/v1/models", headers=headers)).json()["owner"])
        assert world.keys.opens(owners[-1])
        await world.keys.revoke("laptop")
    assert owners[0] != owners[1]
    again = await world.add("laptop", tpm=100)
    assert not any(world.keys.opens(owner) for owner in owners)
    world.keys.spend(owners[0], Usage(90, 20))
    assert (await world.client.post(WORK, headers=again)).status_code == 200
    assert world.keys.used()["laptop"][0].prompt_tokens == 90, "accounts go by names"


async def test_key_limits_requests_at_once(world: World) -> None:
    laptop = await world.add("laptop", concurrent=1)
    first = asyncio.create_task(world.client.post(f"{WORK}?wait=1", headers=laptop))
    await world.began.wait()
    refused = await world.client.post(WORK, headers=laptop)
    assert _code(refused) == (429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "1"
    world.go.set()
    assert (await first).status_code == 200
    assert (await world.client.post(WORK, headers=laptop)).status_code == 200


async def test_a_revoked_key_stops_at_once(world: World) -> None:
    laptop = await world.add("laptop")
    phone = await world.add("phone")
    waiting = asyncio.create_task(world.client.post(f"{WORK}?wait=1", headers=laptop))
    await world.began.wait()
    world.began.clear()
    other = asyncio.create_task(world.client.post(f"{WORK}?wait=1", headers=phone))
    streaming = asyncio.create_task(world.client.post(f"{WORK}?wait=stream", headers=laptop))
    await world.began.wait()
    # By the command line, beside the gateway, and noticed by a look at the file.
    world.file.revoke("laptop")
    await world.keys.look()
    assert _code(await waiting) == (401, "invalid_api_key")
    cut = await streaming
    assert cut.text.startswith("data: 1\n\nevent: error\ndata: ")
    assert "revoked" in cut.text
    assert "data: 2" not in cut.text
    assert (await world.client.get("/v1/models", headers=laptop)).status_code == 401
    world.go.set()
    assert (await other).status_code == 200


async def test_stream_without_key_ends_with_first_key(world: World) -> None:
    following = asyncio.create_task(world.client.get("/admin/v1/live?wait=stream"))
    await world.began.wait()
    world.began.clear()
    # An answer has an end of its own.
    answering = asyncio.create_task(world.client.post(f"{WORK}?wait=1"))
    await world.began.wait()
    await world.add("first")
    cut = await following
    assert cut.text.startswith("data: 1\n\nevent: error\ndata: ")
    assert "There are API keys by now" in cut.text
    world.go.set()
    assert (await answering).status_code == 200


async def test_replaced_admin_key_ends_stream(world: World) -> None:
    laptop = await world.add("laptop")
    following = [
        asyncio.create_task(world.client.get(f"{path}?wait=stream", headers=headers))
        for path, headers in (
            ("/admin/v1/live", world.admin),
            ("/admin/v1/logs", world.admin),
            (WORK, laptop),
        )
    ]
    for _ in following:
        await world.streams.acquire()
    world.state_dir.admin_key_path.unlink()
    await world.keys.look()
    for task in following[:2]:
        assert "The admin key was replaced" in (await task).text
    assert not following[2].done()
    again = asyncio.create_task(world.client.get("/admin?wait=stream", headers=world.admin))
    await world.streams.acquire()
    world.go.set()
    assert (await following[2]).text == (await again).text == "data: 1\n\ndata: 2\n\n"


async def test_a_new_key_of_the_same_name_is_another(world: World) -> None:
    old = await world.add("laptop", rpm=1)
    assert (await world.client.post(WORK, headers=old)).status_code == 200
    await world.keys.revoke("laptop")
    new = await world.add("laptop")
    assert (await world.client.post(WORK, headers=old)).status_code == 401
    assert (await world.client.post(WORK, headers=new)).status_code == 200


async def test_broken_key_file_opens_nothing(world: World) -> None:
    laptop = await world.add("laptop")
    good = world.file.path.read_bytes()
    world.file.path.write_bytes(b"{")
    await world.keys.look()
    assert (await world.client.get("/v1/models", headers=laptop)).status_code == 200
    assert (await world.client.get("/v1/models")).status_code == 401
    world.file.path.write_bytes(good)
    await world.keys.look()
    # Whoever can remove it could write it, but that must not be how a gateway is opened.
    world.file.path.unlink()
    await world.keys.look()
    assert (await world.client.get("/v1/models", headers=laptop)).status_code == 401
    assert (await world.client.get("/v1/models")).status_code == 401
    assert (await world.client.get("/v1/models", headers=world.admin)).status_code == 200


def test_a_file_that_cannot_be_read_is_no_start(state_dir: StateDir) -> None:
    state_dir.keys_path.write_text("{")
    with pytest.raises(KeyFileError):
        ApiKeys(state_dir, exposed=False)


async def test_reachable_gateway_is_never_open(state_dir: StateDir) -> None:
    world = World(state_dir, ApiKeys(state_dir, exposed=True))
    async with world.client:
        assert (await world.client.get("/v1/models")).status_code == 401


async def test_a_removed_admin_key_is_replaced(world: World) -> None:
    await world.add("laptop")
    old = world.admin
    world.state_dir.admin_key_path.unlink()
    await world.keys.look()
    assert (await world.client.get("/admin", headers=old)).status_code == 401
    assert (await world.client.get("/admin", headers=world.admin)).status_code == 200


async def test_accounts_outlive_the_gateway(world: World) -> None:
    laptop = await world.add("laptop")
    await world.client.post(f"{WORK}?tokens=7", headers=laptop)
    await world.client.post(f"{WORK}?tokens=5", headers=world.admin)
    await world.keys.write_accounts()
    used = ApiKeys(world.state_dir, exposed=False).used()
    assert {name: today.prompt_tokens for name, (today, _) in used.items()} == {
        "laptop": 7,
        "admin": 5,
    }
    assert used["laptop"][1].requests == 1


async def test_failing_request_is_fault(world: World) -> None:
    for _ in range(2):
        answer = await world.client.get("/health?fail=1")
        assert answer.status_code == 500
    (fault,) = world.faults.recent(time.time())
    assert (fault.what, fault.reason, fault.times) == (
        "GET /health",
        "OverflowError: too large",
        2,
    )
