"""The key that each path needs, and the requests that count against a key's limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.caller import NeededKey
from gateway.http.app import ROUTES
from gateway.http.wire.openapi import Access, access_of


def _access(method: str, path: str) -> Access:
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    return access_of(ROUTES, scope)


@pytest.mark.parametrize(
    ("path", "need"),
    [
        ("/livez", NeededKey.NOTHING),
        ("/readyz", NeededKey.NOTHING),
        ("/health", NeededKey.NOTHING),
        ("/", NeededKey.NOTHING),
        ("/ui/app.js", NeededKey.NOTHING),
        ("/metrics", NeededKey.ADMIN),
        ("/admin", NeededKey.ADMIN),
        ("/admin/v1/status", NeededKey.ADMIN),
        ("/admin/v1/models/a/b/load", NeededKey.ADMIN),
        ("/api/delete", NeededKey.ADMIN),
        ("/api/pull", NeededKey.ADMIN),
        ("/v1/models", NeededKey.KEY),
        ("/v1/responses/resp_1", NeededKey.KEY),
        ("/api/tags", NeededKey.KEY),
        ("/uix", NeededKey.KEY),
        ("/livez/", NeededKey.KEY),
        ("//livez", NeededKey.KEY),
        ("/nowhere", NeededKey.KEY),
        ("", NeededKey.KEY),
    ],
)
def test_path_needs_its_key(path: str, need: NeededKey) -> None:
    assert _access("GET", path).key is need
    assert _access("OPTIONS", path).key is NeededKey.NOTHING


@given(st.text(max_size=20))
def test_unknown_path_needs_key(rest: str) -> None:
    assert _access("POST", f"/v1/{rest}").key is NeededKey.KEY
    assert _access("POST", f"/admin{rest}").key is NeededKey.ADMIN


def test_requests_that_make_models_work_count() -> None:
    assert _access("POST", "/v1/chat/completions").counts
    assert _access("POST", "/v1/messages/count_tokens").counts
    assert not _access("GET", "/v1/models").counts
    assert not _access("POST", "/v1/responses/resp_1/cancel").counts
