"""The files in which forms wait, and their bound."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from gateway.http.passing.forms import Form, FormFiles
from gateway.requests.share import SHARE, ByteBudget, Share
from gateway.system.refusal import Refusal
from tests.gateway.http.passing.test_form_parts import CHEAP, FILE, form

BODY = form((FILE % b"a", b"\0\r\n" * 200_000), CHEAP, (FILE % b"b", b"\1" * 300_000))


def _come(files: FormFiles, *pieces: bytes) -> tuple[Form, Share]:
    """A form that comes in these pieces; its client leaves before the rest."""
    coming = list(pieces)

    async def receive() -> Message:
        if not coming:
            raise ClientDisconnect
        body = coming.pop(0)
        return {"type": "http.request", "body": body, "more_body": not body.endswith(b"--B--\r\n")}

    headers = [(b"content-type", b"multipart/form-data; boundary=B")]
    share = Share(ByteBudget(1 << 30))
    scope = {"type": "http", "headers": headers, "state": {SHARE: share}}
    return Form(Request(scope, receive), files), share


@pytest.mark.parametrize("step", [100_000, 1 << 20])
async def test_form_can_be_sent_again_under_each_name(tmp_path: Path, step: int) -> None:
    files = FormFiles(tmp_path)
    pieces = [BODY[begin : begin + step] for begin in range(0, len(BODY), step)]
    read, share = _come(files, *pieces)
    assert await read.model() == "cheap"
    await read.read()
    assert not os.listdir(tmp_path), "its file has no name"  # noqa: PTH208
    for model in ("cheap", "a longer name", "ä"):
        sent = b"".join([piece async for piece in read.body(model)])
        assert sent == BODY.replace(b"\r\ncheap\r\n", b"\r\n%b\r\n" % model.encode())
        assert read.length(model) == len(sent)
    taken = files.budget.total_bytes - files.budget.left_bytes
    assert taken >= len(BODY)
    share.release()
    assert files.budget.left_bytes == files.budget.total_bytes


async def test_large_forms_leave_room_for_small_forms(tmp_path: Path) -> None:
    files = FormFiles(tmp_path)
    files.budget = ByteBudget(3 * len(BODY))
    shares = []
    for _ in range(2):
        large, share = _come(files, BODY)
        await large.model()
        shares.append(share)
        if len(shares) == 1:
            await large.read()
    files.budget.reserve(len(BODY) // 2)
    # It would leave less than it takes.
    with pytest.raises(Refusal, match="no room") as refused:
        await large.read()
    assert refused.value.status == 503
    small, share = _come(files, form(CHEAP))
    await small.model()
    await small.read()
    for item in (*shares, share):
        item.release()
    assert files.budget.left_bytes == files.budget.total_bytes - len(BODY) // 2


async def test_form_of_client_that_leaves_frees_its_room(tmp_path: Path) -> None:
    files = FormFiles(tmp_path)
    cut, share = _come(files, form(CHEAP, end=b""), b"--B\r\n" + FILE % b"a" + b"\r\n\r\nx")
    await cut.model()
    with pytest.raises(Refusal, match="left before"):
        await cut.read()
    share.release()
    assert files.budget.left_bytes == files.budget.total_bytes
