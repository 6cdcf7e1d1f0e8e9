"""Keys on a gateway that serves, attacked; and the commands that are about them."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner, Result

from gateway.access.api_key import KeyTerms
from gateway.access.key_file import KeyFile
from gateway.cli import main
from tests.cli.terminal import bulkhead, terminal
from tests.support.faults import sitecustomize
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.raw_http import HOST, ask, connect, read_all, send
from tests.support.streams import open_stream

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """Open until `bulkhead key add` was called beside it, and then not."""
    running = Gateway(
        models=(),
        config="""
        [models.demo]
        path = "demo"
        aliases = ["default"]
        [models.other]
        path = "demo"
        """,
    )
    try:
        assert running.client.get("/v1/models").status_code == 200
        followed = contextlib.ExitStack()
        live = followed.enter_context(running.client.stream("GET", "/admin/v1/live")).iter_text()
        assert next(live)
        made = bulkhead("key", "add", "first", "--state-dir", str(running.state_dir))
        assert made.returncode == 0, made.stderr
        assert "From now on" in made.stderr
        assert running.client.get("/v1/models").status_code == 401, "at once"
        assert "There are API keys by now" in "".join(live), "who looked on sees no more"
        followed.close()
        first = {"authorization": f"Bearer {made.stdout.split()[-1]}"}
        assert running.client.get("/v1/models", headers=first).status_code == 200
        secret = (running.state_dir / "admin.key").read_text().strip()
        running.client.headers["x-api-key"] = secret
        running.load()
        yield running
    finally:
        status = running.stop()
    assert status == 0, running.log


def _new(gateway: Gateway, name: str, **terms: Any) -> dict[str, str]:
    answer = gateway.client.post("/admin/v1/keys", json={"name": name, **terms})
    assert answer.status_code == 201, answer.text
    return {"authorization": f"Bearer {answer.json()['key']}"}


def _used(gateway: Gateway, name: str) -> dict[str, int]:
    """Today."""
    keys = gateway.client.get("/admin/v1/usage").json()["keys"]
    counts: dict[str, int] = next(key for key in keys if key["name"] == name)["today"]
    return counts


def _stranger(gateway: Gateway) -> httpx.Client:
    return httpx.Client(base_url=gateway.url, timeout=60.0)


def _run(*arguments: str, url: str | None = None) -> Result:
    """A command, in this process."""
    named = {"BULKHEAD_URL": url, "BULKHEAD_ADMIN_KEY": None}
    return CliRunner().invoke(main, arguments, env=named)


ADMIN_ROUTES = [
    ("GET", "/admin/v1/status"),
    ("POST", "/admin/v1/reload"),
    ("POST", "/admin/v1/prompt-cache/clear"),
    ("POST", "/admin/v1/models/demo/prompt-cache/clear"),
    ("POST", "/admin/v1/models/demo/load"),
    ("POST", "/admin/v1/models/demo/unload"),
    ("POST", "/admin/v1/models/demo/restart"),
    ("POST", "/admin/v1/models/demo/kill"),
    ("GET", "/admin/v1/models/demo/logs"),
    ("GET", "/admin/v1/logs"),
    ("GET", "/admin/v1/events?follow=0"),
    ("GET", "/admin/v1/keys"),
    ("POST", "/admin/v1/keys"),
    ("DELETE", "/admin/v1/keys/first"),
    ("GET", "/admin/v1/usage"),
    ("GET", "/metrics"),
    # The same by other spellings, and what a router might take for something open.
    ("POST", "/%61dmin/v1/models/demo/kill"),
    ("POST", "/admin/v1/models/%2e%2e/models/demo/kill"),
    ("POST", "/ui/..%2fadmin/v1/models/demo/kill"),
    ("POST", "/livez/../admin/v1/models/demo/kill"),
    ("POST", "//admin/v1/models/demo/kill"),
    ("POST", "/ADMIN/v1/models/demo/kill"),
]


def test_nothing_of_the_operators_without_their_key(gateway: Gateway) -> None:
    pid = gateway.worker_pid()
    guest = _new(gateway, "guest")
    with _stranger(gateway) as client:
        for method, path in ADMIN_ROUTES:
            # The page is everybody's, and has no POST.
            stranger = (404, 405) if path.startswith("/ui/") else (401, 404)
            for headers, allowed in (({}, stranger), (guest, (403, 404, 405))):
                raw = [f"{name}: {value}" for name, value in headers.items()]
                lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Length: 0", *raw]
                data = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
                answer = ask(gateway, data)
                assert answer.status in allowed, (path, headers, answer)
        # An admin key of another gateway, and one that is nearly right.
        secret = gateway.client.headers["x-api-key"]
        for wrong in (secret[:-1], secret + "x", secret.upper(), "sk-bulkhead-", ""):
            answer = client.get("/admin/v1/status", headers={"x-api-key": wrong})
            assert answer.status_code == 401
        for where in (f"?key={secret}", f"?api_key={secret}"):
            assert client.get(f"/admin/v1/status{where}").status_code == 401
        assert (
            client.get("/admin/v1/status", headers={"cookie": f"x-api-key={secret}"}).status_code
            == 401
        )
        for path in ("/v1/chat/completions", "/admin/v1/keys"):
            asked = client.options(path)
            assert (asked.status_code, "POST" in asked.headers["allow"]) == (204, True)
    assert gateway.worker_pid() == pid
    assert gateway.status()["models"][0]["state"] == "ready"


def test_a_smuggled_request_is_asked_for_its_own_key(gateway: Gateway) -> None:
    """Where two servers could see the end of a request at different places, either it is refused,
    or what comes behind it stands for itself.
    """
    guest = _new(gateway, "smuggler")["authorization"].encode()
    hidden = b"GET /admin/v1/status HTTP/1.1\r\n" + HOST + b"\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Authorization: " + guest + b"\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n"
    for framing in (
        b"Content-Length: 5\r\n" + chunked + b"\r\n0\r\n\r\n" + hidden,
        chunked + b"Content-Length: %d\r\n\r\n0\r\n\r\n" % (5 + len(hidden)) + hidden,
        b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden,
        b"Transfer-Encoding: xchunked\r\n\r\n" + hidden,
        b"Content-Length: 0\r\n\r\n" + hidden,
    ):
        with connect(gateway) as connection:
            send(connection, head + framing)
            connection.shutdown(socket.SHUT_WR)
            received = read_all(connection)
        assert b'"pid"' not in received, framing
        assert b"HTTP/1.1 200" not in received, framing


def test_bombs_of_json(gateway: Gateway) -> None:
    """Without a key nobody reads them; with one they are refused, and cost nobody else a thing."""
    headers = _new(gateway, "bomber")
    bombs = [
        b'{"model": "demo", "messages": ' + b"[" * 3_000_000,
        b'{"model": "demo", "messages": ' + b'[{"content":' * 300_000,
        b'{"model": "demo", "metadata": ' + b'{"a":' * 500_000 + b"1" + b"}" * 500_001,
    ]
    with _stranger(gateway) as client:
        for bomb in bombs:
            assert client.post(CHAT, content=bomb).status_code == 401
            answer = client.post(CHAT, content=bomb, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                400,
                "invalid_request_error",
            )
        assert client.get("/livez").status_code == 200


def test_each_api_has_its_own_envelope(gateway: Gateway) -> None:
    with _stranger(gateway) as client:
        openai = client.post(CHAT, json=chat_body("Hello"))
        anthropic = client.post("/v1/messages", json={})
    assert openai.json()["error"]["code"] == "invalid_api_key"
    assert anthropic.json()["error"]["type"] == "authentication_error"
    assert (openai.status_code, anthropic.status_code) == (401, 401)


def test_strangers_learn_nothing_of_models(gateway: Gateway) -> None:
    with _stranger(gateway) as client:
        assert client.get("/livez").text == "ok\n"
        assert client.get("/readyz").status_code == 200
        health = client.get("/health").json()
        assert (health["status"], health["models"]) == ("ok", [])
        assert client.get("/health?deep=demo").status_code == 403


def test_a_key_sees_its_models_alone(gateway: Gateway) -> None:
    headers = _new(gateway, "narrow", models=["default"])
    with _stranger(gateway) as client:
        client.headers.update(headers)
        assert [item["id"] for item in client.get("/v1/models").json()["data"]] == ["demo"]
        for name in ("demo", "default"):
            assert client.post(CHAT, json=chat_body("Hi", name, max_tokens=1)).status_code == 200
        # As if there were none: by id, with traversal, on every path.
        for path, body in (
            (CHAT, chat_body("Hi", "other")),
            (CHAT, chat_body("Hi", "demo/../other")),
            ("/v1/completions", {"model": "other", "prompt": "Hi"}),
            ("/v1/embeddings", {"model": "other", "input": "Hi"}),
            ("/v1/rerank", {"model": "other", "query": "a", "documents": ["b"]}),
            ("/v1/messages", {**chat_body("Hi", "other"), "max_tokens": 1}),
            ("/v1/messages/count_tokens", chat_body("Hi", "other")),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["message"].endswith("there are: demo.")
        assert client.get("/v1/models/other").status_code == 404
        assert client.get("/health").json()["models"][0]["id"] == "demo"
    assert gateway.model("other")["state"] == "unloaded"


def test_client_gone_before_its_vectors_has_used_the_texts(gateway: Gateway) -> None:
    headers = _new(gateway, "collector", tpm=100)
    body = json.dumps({"model": "demo", "input": ["word " * 500] * 8})
    raw = ["POST /v1/embeddings HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    raw += [f"Authorization: {headers['authorization']}", "", ""]
    with connect(gateway) as connection:
        send(connection, "\r\n".join(raw).encode() + body.encode())
        eventually(
            lambda: gateway.model()["active_requests"] or _used(gateway, "collector")["requests"],
            START_S,
        )
    counts = eventually(lambda: used if (used := _used(gateway, "collector"))["requests"] else None)
    assert counts["prompt_tokens"] > 1000
    with httpx.Client(base_url=gateway.url, headers=headers) as client:
        answer = client.post("/v1/embeddings", json={"model": "demo", "input": "Hi"})
    assert (answer.status_code, "tokens" in answer.text) == (429, True), answer.text


def test_client_gone_early_has_used_the_computed_tokens(gateway: Gateway) -> None:
    headers = _new(gateway, "leaver", tpm=20)
    body = json.dumps(chat_body("Tell me a story.", max_tokens=2000, ignore_eos=True, stream=True))
    raw = [f"POST {CHAT} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    raw += [f"Authorization: {headers['authorization']}", "", ""]
    with connect(gateway) as connection:
        send(connection, "\r\n".join(raw).encode() + body.encode())
        received = b""
        while received.count(b"data: ") < 20:
            received += connection.recv(65536)

    counts = eventually(lambda: used if (used := _used(gateway, "leaver"))["requests"] else None)
    assert counts["prompt_tokens"] > 0
    assert counts["completion_tokens"] >= 19
    refused = gateway.chat("Hi", headers={**headers, "x-api-key": ""})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1


def test_a_revoked_key_ends_what_runs_under_it(gateway: Gateway) -> None:
    headers = _new(gateway, "stolen")
    stream = open_stream(
        gateway, "Tell me a story.", headers=headers, max_tokens=4000, ignore_eos=True
    )
    eventually(lambda: stream.text, START_S)
    folder = str(gateway.state_dir)
    assert _run("key", "revoke", "stolen", "--state-dir", folder).exit_code == 0
    stream.join()
    assert stream.error is not None
    assert stream.error["code"] == "invalid_api_key"
    eventually(lambda: gateway.model()["active_requests"] == 0)


def test_a_background_response_belongs_to_its_key(gateway: Gateway) -> None:
    night, day = _new(gateway, "night"), _new(gateway, "day")
    asked = {"model": "demo", "input": "Hi", "background": True}
    with _stranger(gateway) as client:

        def ask(**fields: Any) -> str:
            answer = client.post("/v1/responses", json={**asked, **fields}, headers=night)
            return f"/v1/responses/{answer.raise_for_status().json()['id']}"

        def status(path: str) -> str:
            found: str = client.get(path, headers=night).raise_for_status().json()["status"]
            return found

        path = ask(max_output_tokens=5, ignore_eos=True)
        eventually(lambda: status(path) == "incomplete", START_S)
        for method in ("GET", "DELETE"):
            assert client.request(method, path, headers=day).status_code == 404
        assert client.get(path).status_code == 401
        used = gateway.client.get("/admin/v1/usage").json()["keys"]
        (today,) = (item["today"] for item in used if item["name"] == "night")
        assert (today["requests"], today["completion_tokens"]) == (1, 5)
        running = ask(max_output_tokens=3000, ignore_eos=True)
        eventually(lambda: status(running) == "in_progress", START_S)
        gateway.client.delete("/admin/v1/keys/night").raise_for_status()
        eventually(lambda: gateway.model()["active_requests"] == 0)


def test_no_key_but_the_operators_unloads_a_model(gateway: Gateway) -> None:
    headers = _new(gateway, "short")
    empty = {"model": "demo", "stream": False, "keep_alive": 0}
    with _stranger(gateway) as client:
        client.headers.update(headers)
        for path, body in (("/api/generate", empty), ("/api/chat", {**empty, "messages": []})):
            refused = client.post(path, json=body)
            assert (refused.status_code, "admin key" in refused.text) == (403, True), path
        for path, body in (
            (CHAT, chat_body("Hi", max_tokens=1, keep_alive=0)),
            ("/api/generate", {**empty, "prompt": "Hi", "options": {"num_predict": 1}}),
            ("/v1/responses", {"model": "demo", "input": "Hi", "keep_alive": 0}),
        ):
            assert client.post(path, json=body).status_code == 200, path
            (loaded,) = client.get("/api/ps").json()["models"]
            year = int(loaded["expires_at"][:4])
            assert year > datetime.datetime.now(datetime.UTC).year + 1, "never, as it is configured"


def test_a_name_of_a_key_goes_into_no_path(gateway: Gateway) -> None:
    for name in ("../x", "a/b", "", "admin", "a" * 100, "a\nb"):
        answer = gateway.client.post("/admin/v1/keys", json={"name": name})
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "invalid_request_error",
        )
    past = gateway.client.post("/admin/v1/keys", json={"name": "late", "expires_at": 1.0})
    assert (past.status_code, past.json()["error"]["param"]) == (400, "expires_at")
    never = gateway.client.post("/admin/v1/keys", json={"name": "late", "expires_at": 1e30})
    assert (never.status_code, never.json()["error"]["param"]) == (400, "expires_at")
    assert gateway.client.delete("/admin/v1/keys/nobody").status_code == 404


def test_commands(gateway: Gateway) -> None:
    folder = ("--state-dir", str(gateway.state_dir))
    made = _run(
        *("key", "add", "cli", "--models", "demo,default", "--rpm", "5", "--expires", "90d"),
        *folder,
    )
    secret = made.stdout.split()[-1]
    assert gateway.client.get("/v1/models", headers={"x-api-key": secret}).status_code == 200
    again = _run("key", "add", "cli", *folder)
    assert (again.exit_code, again.stdout) == (1, "")
    for number in ("90", "90.5"):
        unitless = _run("key", "add", "soon", "--expires", number, *folder)
        assert (unitless.exit_code, "has no unit" in unitless.stderr) == (2, True)
    listed = json.loads(_run("key", "list", "--json", *folder).stdout)["keys"]
    mine = next(item for item in listed if item["name"] == "cli")
    assert (mine["models"], mine["rpm"], mine["key"]) == (["demo", "default"], 5, None)
    assert secret not in json.dumps(listed)
    changed = _run("key", "set", "cli", "--rpm", "6", "--tpm", "900", "--unset", "models", *folder)
    assert changed.exit_code == 0, changed.stderr
    answer = gateway.client.get("/v1/models", headers={"x-api-key": secret})
    assert answer.headers["x-ratelimit-limit-requests"] == "6", "at once, with the same secret"
    assert "other" in answer.text
    for wrong in ((), ("--rpm", "6", "--unset", "rpm"), ("--rpm", "0")):
        assert _run("key", "set", "cli", *wrong, *folder).exit_code == 2
    assert _run("key", "set", "nobody", "--rpm", "6", *folder).exit_code == 1
    # From elsewhere, as any machine would.
    denied = _run("usage", url=gateway.url)
    assert (denied.exit_code, "BULKHEAD_ADMIN_KEY" in denied.stderr) == (1, True)
    admin = ("--admin-key", gateway.client.headers["x-api-key"])
    usage = _run("usage", *admin, url=gateway.url)
    assert usage.exit_code == 0, usage.stderr
    assert "this month" in usage.stdout
    assert "this month" in _run("usage", *folder).stdout
    remote = _run("key", "set", "cli", "--unset", "tpm", "--share", "3", *admin, url=gateway.url)
    assert remote.exit_code == 0, remote.stderr
    listed = json.loads(_run("key", "list", "--json", *folder).stdout)["keys"]
    mine = next(item for item in listed if item["name"] == "cli")
    assert (mine["rpm"], mine["tpm"], mine["share"]) == (6, None, 3)
    remote = _run("key", "revoke", "cli", *admin, url=gateway.url)
    assert remote.exit_code == 0, remote.stderr
    assert gateway.client.get("/v1/models", headers={"x-api-key": secret}).status_code == 401
    assert _run("key", "revoke", "cli", *folder).exit_code == 1
    assert "cli" not in _run("key", "list", *folder).stdout


def test_a_key_that_reads(gateway: Gateway) -> None:
    folder = ("--state-dir", str(gateway.state_dir))
    made = _run("key", "add", "board", "--reads", "--expires", "90d", *folder)
    board = {"authorization": f"Bearer {made.stdout.split()[-1]}"}
    assert _run("key", "add", "bored", "--reads", "--rpm", "5", *folder).exit_code == 2
    with _stranger(gateway) as client:
        client.headers.update(board)
        metrics = client.get("/metrics").text
        assert "bulkhead_model_state" in metrics
        assert 'bulkhead_key_requests_total{key="board"} 0.0' in metrics
        ids = {item["id"] for item in client.get("/v1/models").json()["data"]}
        assert ids == {item["id"] for item in gateway.client.get("/v1/models").json()["data"]}
        assert client.get("/v1/models/demo").status_code == 200
        live = client.get("/admin/v1/live?follow=0").text
        assert '"reads":true' in live
        for secret in (made.stdout.split()[-1], gateway.client.headers["x-api-key"]):
            assert secret not in client.get("/admin/v1/keys").text
        for path in (CHAT, "/admin/v1/models/demo/kill", "/admin/v1/page/codes"):
            refused = client.post(path, json=chat_body("Hi"))
            assert (refused.status_code, "only reads" in refused.text) == (403, True), path
        assert client.get("/health?deep=demo").status_code == 403
        for path in ("/admin/v1/logs", "/admin/v1/models/demo/logs"):
            assert client.get(path).status_code == 403
    assert _run("key", "revoke", "board", *folder).exit_code == 0
    assert 'key="board"' not in gateway.client.get("/metrics").text


def test_a_key_that_reads_gets_no_end_of_a_log(tmp_path: Path) -> None:
    said = "what somebody has sent"
    running = Gateway(
        environment=sitecustomize(tmp_path, f"import sys; print({said!r}, file=sys.stderr)")
    )
    try:
        running.load()
        os.kill(running.worker_pid(), signal.SIGKILL)
        eventually(lambda: running.model()["last_exit"])
        assert any(said in item for item in running.model()["last_exit"]["log_tail"])
        made = running.client.post("/admin/v1/keys", json={"name": "board", "reads": True}).json()
        running.client.headers["x-api-key"] = made["key"]
        assert running.model()["last_exit"]["log_tail"] == []
        assert '"log_tail":[]' in running.client.get("/admin/v1/live?follow=0").text
        assert running.model()["last_exit"]["signal"] == "SIGKILL"
    finally:
        assert running.stop() == 0, running.log


def test_the_page_is_opened_by_a_code_that_works_once(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser is a program that notes what it is given, which every account could see."""
    noted = tmp_path / "noted"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {noted}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.setenv("BULKHEAD_STATE_DIR", str(gateway.state_dir))
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    done = _run("page")
    assert done.exit_code == 0, done.stderr
    address, _, code = done.stdout.strip().partition("#code=")
    assert address == f"{gateway.url}/ui"
    seen = eventually(lambda: noted.exists() and noted.read_text().strip())
    assert seen.startswith("file://")
    assert code not in seen
    file = Path(seen.removeprefix("file://"))
    assert f"#code={code}" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with _stranger(gateway) as client:
        shown = {"code": code}
        foreign = {"origin": "https://evil.example"}
        assert client.post("/ui/session", json=shown, headers=foreign).status_code == 403
        answer = client.post("/ui/session", json=shown)
        assert answer.status_code == 201, answer.text
        session = answer.json()["key"]
        assert session != gateway.client.headers["x-api-key"]
        assert client.post("/ui/session", json=shown).status_code == 401, "a second time"
        page = {"authorization": f"Bearer {session}"}
        assert client.get("/admin/v1/status", headers=page).status_code == 200
        assert client.post("/admin/v1/page/codes", headers=page).status_code == 403
        assert client.delete("/ui/session", headers=page).json() == {"signed_out": True}
        assert client.get("/admin/v1/status", headers=page).status_code == 401
        for _ in range(9):
            assert client.post("/ui/session", json={"code": "guess"}).status_code == 401
        limited = client.post("/ui/session", json={"code": "guess"})
        assert (limited.status_code, limited.json()["error"]["code"]) == (
            429,
            "rate_limit_exceeded",
        )
        assert int(limited.headers["retry-after"]) >= 1
    kept = gateway.log + "".join(
        path.read_text(errors="replace") for path in gateway.state_dir.glob("logs/*")
    )
    assert "/ui/session" in kept
    assert code not in kept
    assert session not in kept
    monkeypatch.setenv("SSH_CONNECTION", "1")
    noted.unlink()
    assert "#code=" in _run("page").stdout
    assert not noted.exists()


def test_without_keys_again() -> None:
    """All that was closed is open again, and nothing that runs under a key goes on."""
    running = Gateway()
    try:
        folder = ("--state-dir", str(running.state_dir))
        assert "There are no keys" in _run("key", "off", "--yes", *folder).stdout
        made = _run("key", "add", "phone", *folder)
        assert "bulkhead key off" in made.stderr
        assert running.client.get("/v1/models").status_code == 401
        phone = {"authorization": f"Bearer {made.stdout.split()[-1]}"}
        stream = open_stream(
            running, "Tell me a story.", headers=phone, max_tokens=4000, ignore_eos=True
        )
        eventually(lambda: stream.text, START_S)
        unasked = _run("key", "off", *folder)
        assert (unasked.exit_code, "--yes" in unasked.stderr) == (1, True)
        assert "phone" in unasked.stderr
        assert running.client.get("/v1/models").status_code == 401
        with terminal("key", "off", *folder, url=None) as screen:
            screen.expect("Go on without keys?")
            screen.type("n\r")
            screen.expect("The keys stay.")
            assert screen.exit_status() == 1
        done = _run("key", "off", "--yes", *folder)
        assert done.exit_code == 0, done.stderr
        stream.join()
        assert stream.error is not None
        assert stream.error["code"] == "invalid_api_key"
        for headers in ({}, phone):
            assert running.client.get("/admin/v1/status", headers=headers).status_code == 200
        assert running.client.post("/admin/v1/page/codes").json()["code"] is None
        assert _run("page", url=running.url).stdout.strip() == f"{running.url}/ui"
        assert "no keys" in _run("key", "list", *folder).stdout
        assert _run("key", "add", "phone", *folder).exit_code == 0
        assert running.client.get("/v1/models").status_code == 401
    finally:
        assert running.stop() == 0, running.log


def test_gateway_reached_from_elsewhere_keeps_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "state"
    config = tmp_path / "config.toml"
    config.write_text(f'[gateway]\nhost = "0.0.0.0"\nport = 0\nstate_dir = "{folder}"\n')
    monkeypatch.setenv("BULKHEAD_CONFIG", str(config))
    assert _run("key", "add", "phone").exit_code == 0
    for yes in ((), ("--yes",)):
        refused = _run("key", "off", *yes)
        assert (refused.exit_code, "0.0.0.0 is not loopback" in refused.stderr) == (1, True)
        assert "take gateway.host out of the configuration" in refused.stderr
        assert "This revokes" not in refused.stderr
    running = Gateway(
        *("--host", "0.0.0.0"),
        models=(),
        prepare=lambda path: KeyFile(path / "keys.json").add("phone", KeyTerms(), 1.0),
    )
    try:
        admin = {"x-api-key": (running.state_dir / "admin.key").read_text().strip()}
        refused_there = running.client.delete("/admin/v1/keys", headers=admin)
        assert (refused_there.status_code, "The keys stay" in refused_there.text) == (400, True)
        unasked = _run("key", "off", "--state-dir", str(running.state_dir))
        assert (unasked.exit_code, "The keys stay" in unasked.stderr) == (1, True)
        assert "This revokes" not in unasked.stderr
        assert running.client.get("/v1/models").status_code == 401
    finally:
        assert running.stop() == 0, running.log


def test_stored_answers_are_counted_once(gateway: Gateway) -> None:
    headers = _new(gateway, "parked", tpm=1000)
    kept = gateway.chat("Hi", headers={**headers, "x-mailbox": "keep"}, max_tokens=5).json()
    body = {"model": "demo", "input": "Hi", "max_output_tokens": 5, "background": True}
    started = gateway.client.post("/v1/responses", json=body, headers=headers).json()

    def made() -> Any:
        answer = gateway.client.get(f"/v1/responses/{started['id']}", headers=headers).json()
        return answer if answer["status"] in ("completed", "incomplete") else None

    usages = kept["usage"], eventually(made, START_S)["usage"]

    def both() -> dict[str, int] | None:
        counts = _used(gateway, "parked")
        return counts if counts["requests"] >= 2 else None

    counts = eventually(both)
    assert (counts["requests"], counts["prompt_tokens"], counts["completion_tokens"]) == (
        2,
        usages[0]["prompt_tokens"] + usages[1]["input_tokens"],
        usages[0]["completion_tokens"] + usages[1]["output_tokens"],
    )
    left = gateway.client.get("/v1/models", headers=headers).headers
    used = counts["prompt_tokens"] + counts["completion_tokens"]
    assert left["x-ratelimit-remaining-tokens"] == str(1000 - used)


def _code(answer: httpx.Response) -> str | None:
    error = answer.json().get("error")
    return None if error is None else error["code"]


@contextlib.contextmanager
def _pausing(gateway: Gateway) -> Iterator[None]:
    """Meanwhile no answer comes to its end."""
    worker = psutil.Process(gateway.worker_pid())
    worker.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.resume()


def test_a_place_is_held_until_the_answer_is_made(gateway: Gateway) -> None:
    """By who asks for it in the background, or leaves, as well; and each of `n` has one."""
    headers = _new(gateway, "crowd", concurrent=2)
    background = {"model": "demo", "input": "Hi", "background": True}
    with _stranger(gateway) as client:
        client.headers.update(headers)

        def asked(**fields: Any) -> httpx.Response:
            return client.post(CHAT, json=chat_body("Hi", max_tokens=1, **fields))

        never = asked(n=3)
        assert (never.status_code, _code(never)) == (429, "rate_limit_exceeded")
        assert never.headers["x-should-retry"] == "false"
        assert asked(n=2).status_code == 200
        with _pausing(gateway):
            made = [client.post("/v1/responses", json=background).json() for _ in range(2)]
            for answer in (asked(), client.post("/v1/responses", json=background)):
                assert (answer.status_code, _code(answer)) == (429, "rate_limit_exceeded")
            for item in made:
                client.post(f"/v1/responses/{item['id']}/cancel").raise_for_status()
        eventually(lambda: asked().status_code == 200, START_S)
        body = json.dumps(chat_body("Hi", n=2)).encode()
        lines = [f"POST {CHAT} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += ["X-Mailbox: keep", "X-Request-Id: crowded"]
        lines += [f"Authorization: {headers['authorization']}", "", ""]
        kept = f"{CHAT}/chatcmpl-crowded"
        with _pausing(gateway):
            with connect(gateway) as connection:
                send(connection, "\r\n".join(lines).encode() + body)
                eventually(lambda: client.get(kept).status_code == 202, START_S)
            assert _code(asked()) == "rate_limit_exceeded", "its client has left, and it goes on"
            client.delete(kept).raise_for_status()
        eventually(lambda: asked().status_code == 200, START_S)


def test_tokens_count_before_an_answer_is_over(gateway: Gateway) -> None:
    """Else a key would begin as much as it likes while its first answer is made."""
    headers = _new(gateway, "hasty", tpm=1)
    stream = open_stream(
        gateway, "Tell me a story.", headers=headers, max_tokens=4000, ignore_eos=True
    )
    eventually(lambda: stream.text, START_S)
    second = gateway.chat("Hi", headers={**headers, "x-api-key": ""}, max_tokens=1)
    assert (second.status_code, _code(second)) == (429, "rate_limit_exceeded")
    gateway.client.delete("/admin/v1/keys/hasty").raise_for_status()
    stream.join()


def test_operators_stream_ends_with_the_admin_key(gateway: Gateway) -> None:
    secret = gateway.client.headers["x-api-key"]
    paths = ("/admin/v1/live", "/admin/v1/logs?follow=1", "/admin/v1/events")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(_stranger(gateway))
        client.headers["x-api-key"] = secret
        streams = [stack.enter_context(client.stream("GET", text)) for text in paths]
        readers = [stream.iter_text() for stream in streams]
        for reader in readers:
            assert next(reader)
        path = gateway.state_dir / "admin.key"
        path.unlink()
        # Each ends by itself, and its reader with it.
        for reader in readers:
            assert "The admin key was replaced" in "".join(reader)
        assert client.get("/admin/v1/status").status_code == 401
    gateway.client.headers["x-api-key"] = path.read_text().strip()
    assert gateway.client.get("/admin/v1/status").status_code == 200
