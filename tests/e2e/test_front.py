"""What clients expect of HTTP on every route, and of `/`."""

from __future__ import annotations

import json
import re

import pytest

from gateway.http.app import ROUTES
from tests.support.gateway import Gateway

PATHS: dict[str, set[str]] = {}
for route in ROUTES:
    written = re.sub(r"\{\w+(:\w+)?\}", "demo", route.path)
    PATHS.setdefault(written, set()).update(route.methods or ())


def test_every_route_says_what_it_takes(gateway: Gateway) -> None:
    for path, methods in PATHS.items():
        options = gateway.client.options(path)
        assert options.status_code == 204, path
        allowed = {word.strip() for word in options.headers["allow"].split(",")}
        # Ids may have slashes, so a longer path may be an id of a shorter one.
        assert allowed >= methods | {"OPTIONS"}, path
        refused = gateway.client.patch(path)
        assert refused.status_code == 405, path
        assert refused.headers["allow"] == options.headers["allow"]


def test_heads_are_those_of_gets(gateway: Gateway) -> None:
    """Also of what goes on for ever."""
    for path, methods in PATHS.items():
        head = gateway.client.head(path)
        # Nothing is kept under that id, which a longer path may be, too; and what the configuration
        # names can't be removed.
        fitting = (200, 400, 404) if "GET" in methods else (404, 405)
        assert head.status_code in fitting, path
        assert head.content == b""
    assert gateway.client.head("/admin/v1/logs?follow=1").status_code == 200


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("/v1/none", {"message", "type", "code", "param"}),
        ("/v1/messages/none", {"type", "message"}),
        ("/api/none", None),
        ("/none", {"message", "type", "code", "param"}),
    ],
)
def test_unknown_paths(gateway: Gateway, path: str, keys: set[str] | None) -> None:
    answer = gateway.client.get(path)
    assert answer.status_code == 404
    error = json.loads(answer.text)["error"]
    assert isinstance(error, str) if keys is None else set(error) == keys
    assert answer.headers["x-request-id"]


def test_the_front_page(gateway: Gateway) -> None:
    text = gateway.client.get("/")
    assert text.headers["content-type"].startswith("text/plain")
    assert "/openapi.json" in text.text
    page = gateway.client.get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert page.headers["content-type"].startswith("text/html")
    assert '<a href="/v1/models">' in page.text
    assert gateway.client.head("/").status_code == 200


def test_openapi_is_served(gateway: Gateway) -> None:
    first = gateway.client.get("/openapi.json")
    assert first.json()["openapi"] == "3.1.0"
    assert gateway.client.get("/openapi.json").content == first.content
