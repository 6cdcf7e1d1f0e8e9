"""What a Mac's privacy of the local network looks like, and what is said of it."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from gateway.system.file_access import program
from gateway.workers import pinned
from gateway.workers.pinned import PinnedClient, advice

NO_ROUTE = OSError(errno.EHOSTUNREACH, "No route to host")


def test_only_a_mac_means_it_so() -> None:
    told = advice(NO_ROUTE, "darwin")
    assert "--system" in told
    assert program() in told
    assert advice(NO_ROUTE, "linux") == ""
    assert advice(ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "darwin") == ""


async def test_who_is_kept_out_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text("secret")
    key.chmod(0o600)

    async def kept_out(*_: Any, **__: Any) -> Any:
        raise NO_ROUTE

    monkeypatch.setattr(asyncio, "open_connection", kept_out)
    monkeypatch.setattr(pinned, "advice", lambda error: advice(error, "darwin"))
    client = PinnedClient("https://127.0.0.1:1", str(key), "0" * 64)
    with pytest.raises(
        ConnectionError, match=r"No route to host\. macOS says that, too, to a Laun"
    ):
        await client.get("/v1/host", dict, 5.0)  # type: ignore[type-var]
    await client.close()
