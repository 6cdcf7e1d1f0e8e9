"""What is kept belongs to one key: to every other it isn't there.

Routes, mailbox and file are real; nothing is made, so there is no fleet behind them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from gateway.access.caller import Caller
from gateway.config.settings import Settings
from gateway.http.openai import responses, stored_answers
from gateway.http.openai.responses import ResponseFamily
from gateway.http.wire.access_log import Record
from gateway.http.wire.errors import on_refusal
from gateway.mailbox.entry import AnswerOutcome, Api, MailboxEntry
from gateway.mailbox.mailbox import Mailbox
from gateway.requests.share import SHARE, ByteBudget, Share
from gateway.system.events import EventLog
from gateway.system.refusal import Refusal
from protocol.answers import Usage

ITEMS = b"""[
  {"type": "message", "id": "msg_1", "role": "user", "content": "a"},
  {"type": "message", "id": "msg_2", "role": "assistant", "content": "b"},
  {"type": "message", "id": "msg_3", "role": "user", "content": "c"}
]"""
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}


class _Owners:
    def opens(self, owner: str) -> bool:
        return True

    def spend(self, owner: str, usage: Usage) -> None:
        raise AssertionError("nothing was made")

    def seat(self, owner: str) -> None:
        return None

    def share(self, owner: str) -> int:
        return 1

    def exhausted(self, owner: str) -> bool:
        return False


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    fleet: Any = SimpleNamespace(events=EventLog(), settings=Settings())
    families = {"chat": stored_answers.ChatFamily(), "responses": ResponseFamily()}
    mailbox = Mailbox(tmp_path / "mailbox.sqlite", fleet, families, _Owners(), ByteBudget(1 << 30))
    mailbox.start()
    for owner in ("me", "you", ""):
        await _put(mailbox, owner, "responses")
        await _put(mailbox, owner, "chat")
    app = Starlette(
        routes=[*responses.routes, *stored_answers.stored_chat_routes],
        exception_handlers={Refusal: on_refusal},
    )
    app.state.mailbox = mailbox

    async def with_key(scope: Scope, receive: Receive, send: Send) -> None:
        """As the middleware of keys leaves a request."""
        owner = dict(scope["headers"]).get(b"key", b"").decode()
        caller, share = Caller(owner=owner), Share(ByteBudget(1 << 30))
        scope["state"] = {"record": Record("r"), "caller": caller, SHARE: share}
        await app(scope, receive, send)

    transport = httpx.ASGITransport(with_key)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client
    await mailbox.close()


async def _put(mailbox: Mailbox, owner: str, api: Api) -> None:
    entry = MailboxEntry(
        owner=owner,
        id=_id(api, owner),
        api=api,
        model="m",
        status="completed",
        created_at=1.0,
        ended_at=1e12,
    )
    body = f'{{"id": "{entry.id}"}}'.encode()
    await mailbox.put(entry, AnswerOutcome("completed", 200, body), ITEMS)


def _id(api: str, owner: str) -> str:
    return f"{api}_{owner or 'nobody'}"


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("owner", ["me", "you", ""])
async def test_each_sees_its_own(client: httpx.AsyncClient, api: str, owner: str) -> None:
    headers = {"key": owner} if owner else {}
    for other in ("me", "you", ""):
        path = f"{PATHS[api]}/{_id(api, other)}"
        answers = [await client.get(path, headers=headers)]
        if api == "responses":
            answers.append(await client.get(f"{path}/input_items", headers=headers))
            answers.append(await client.get(f"{path}?stream=true", headers=headers))
            answers.append(await client.post(f"{path}/cancel", headers=headers))
        if other == owner:
            assert answers[0].json()["id"] == _id(api, other)
            assert all(answer.status_code != 404 for answer in answers)
        else:
            answers.append(await client.delete(path, headers=headers))
            assert {response.status_code for response in answers} == {404}
            assert answers[0].json()["error"]["code"] == "not_found"
    # Neither has one of the other API's.
    (wrong,) = set(PATHS) - {api}
    path = f"{PATHS[api]}/{_id(wrong, owner)}"
    assert (await client.get(path, headers=headers)).status_code == 404
    if api == "chat":
        listed = (await client.get(PATHS[api], headers=headers)).json()
        assert [item["id"] for item in listed["data"]] == [_id(api, owner)]
    assert (await client.delete(f"{PATHS[api]}/{_id(api, owner)}", headers=headers)).json()[
        "deleted"
    ]


async def test_pages_of_items(client: httpx.AsyncClient) -> None:
    path = f"/v1/responses/{_id('responses', '')}/input_items"

    async def page(query: str) -> tuple[list[str], bool]:
        listed = (await client.get(f"{path}?{query}")).json()
        ids = [item["id"] for item in listed["data"]]
        assert [listed["first_id"], listed["last_id"]] == ([ids[0], ids[-1]] if ids else [None] * 2)
        return ids, listed["has_more"]

    assert await page("") == (["msg_3", "msg_2", "msg_1"], False)
    assert await page("order=asc&limit=2") == (["msg_1", "msg_2"], True)
    assert await page("order=asc&limit=2&after=msg_2") == (["msg_3"], False)
    assert await page("after=msg_1") == ([], False)
    for query in ("after=msg_9", "limit=x"):
        assert (await client.get(f"{path}?{query}")).status_code == 400
