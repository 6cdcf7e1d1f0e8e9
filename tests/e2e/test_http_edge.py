"""What HTTP allows and few clients do, and what it doesn't allow, on real sockets."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.access.api_key import KeyTerms
from gateway.access.key_file import KeyFile
from tests.support.faults import held_steps, in_engine_step, sitecustomize
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.raw_http import HOST, ask, connect, get, parse, post, read_all, send
from tests.support.streams import open_stream

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Whose demo model makes twenty tokens a second, so that an answer lasts."""
    site = tmp_path_factory.mktemp("edge") / "site"
    running = Gateway(environment=sitecustomize(site, in_engine_step("time.sleep(0.05)")))
    try:
        running.load()
        yield running
    finally:
        status = running.stop()
    assert status == 0, running.log


def _body(max_tokens: int = 10, **fields: Any) -> dict[str, Any]:
    return chat_body("Tell me a story.", max_tokens=max_tokens, ignore_eos=True, **fields)


def _idle(gateway: Gateway) -> bool:
    return gateway.model()["active_requests"] == 0


# Web pages


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_foreign_page_is_refused_everywhere(gateway: Gateway, headers: dict[str, str]) -> None:
    pid = gateway.worker_pid()
    for path in ("/livez", "/readyz", "/health", "/v1/models", "/admin/v1/status", "/nowhere"):
        answer = gateway.client.get(path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
        assert answer.headers["x-request-id"]
        assert not any(name.startswith("access-control") for name in answer.headers)
    # No preflight asks before this one.
    text = json.dumps(chat_body("Hello", max_tokens=1, keep_alive=0))
    answer = gateway.client.post(
        CHAT, content=text, headers={**headers, "Content-Type": "text/plain"}
    )
    assert answer.status_code == 403
    assert gateway.client.options(CHAT, headers=headers).status_code == 403
    assert gateway.worker_pid() == pid


def test_links_from_elsewhere_open_the_pages_alone(gateway: Gateway) -> None:
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    for path, status in (("/", 200), ("/ui", 200), ("/ui/app.js", 403), ("/v1/models", 403)):
        assert gateway.client.get(path, headers=link).status_code == status
    assert gateway.client.post("/ui", headers=link).status_code == 403


def test_an_allowed_page_gets_cors(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway(
        config="""
        [gateway]
        allowed_origins = ["https://chat.example"]
        allowed_hosts = ["mac.example"]
        """,
        prepare=lambda state_dir: KeyFile(state_dir / "keys.json").add("one", KeyTerms(), 1.0),
    )
    admin = (running.state_dir / "admin.key").read_text().strip()
    running.client.headers["authorization"] = f"Bearer {admin}"
    page = {"Origin": "https://chat.example"}
    preflight = running.client.options(
        CHAT,
        headers={
            **page,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-priority",
        },
    )
    assert preflight.status_code == 200
    allowed = preflight.headers["access-control-allow-headers"]
    assert {"authorization", "content-type", "x-priority"} <= set(allowed.split(", "))
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for answer in (
        preflight,
        running.client.post(CHAT, json=chat_body("Hello", max_tokens=1), headers=page),
        running.client.post(CHAT, json={}, headers=page),
        running.client.get("/livez", headers={**page, "Sec-Fetch-Site": "cross-site"}),
    ):
        assert answer.headers["access-control-allow-origin"] == page["Origin"]
        assert "Origin" in answer.headers["vary"]
        assert answer.headers["x-request-id"]
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert running.client.get("/livez", headers={"Host": "mac.example"}).status_code == 200
    other = {"Origin": "https://other.example"}
    assert running.client.get("/livez", headers=other).status_code == 403
    running.config_path.write_text('[gateway]\nallowed_origins = ["https://other.example"]\n')
    assert "gateway.allowed_origins" in running.client.post("/admin/v1/reload").json()["applied"]
    assert running.client.get("/livez", headers=other).status_code == 200
    assert running.client.get("/livez", headers=page).status_code == 403


@pytest.mark.parametrize(
    "header",
    [
        ("Forwarded", "for=192.0.2.60;proto=http"),
        ("X-Forwarded-For", "192.0.2.60"),
        ("x-forwarded-proto", "https"),
        ("X-Forwarded-Host", "mac.example"),
        ("Via", "1.1 Caddy"),
        ("Tailscale-User-Login", "somebody@example.com"),
        ("X-Real-IP", "192.0.2.60"),
    ],
    ids=lambda header: header[0],
)
def test_without_keys_nothing_comes_through_a_proxy(
    gateway: Gateway, header: tuple[str, str]
) -> None:
    """Everybody who reaches the proxy would be the operator."""
    for path in ("/v1/models", "/admin/v1/status", "/ui/", "/health", "/livez"):
        answer = gateway.client.get(path, headers=dict([header]))
        assert answer.status_code == 403, path
        error = answer.json()["error"]
        assert error["code"] == "permission_denied"
        assert header[0].lower() in error["message"]
        assert "bulkhead key add NAME" in error["message"]
    chat = gateway.client.post(CHAT, json=chat_body("Hello"), headers=dict([header]))
    assert chat.status_code == 403
    kill = gateway.client.post("/admin/v1/models/demo/kill", json={}, headers=dict([header]))
    assert kill.status_code == 403
    assert gateway.client.get("/v1/models").status_code == 200


def test_names_and_proxies_come_with_the_first_key(start_gateway: Callable[..., Gateway]) -> None:
    running = start_gateway(config="[gateway]\n")
    proxied = {"X-Forwarded-For": "192.0.2.60", "Host": "mac.example"}
    running.config_path.write_text('[gateway]\nallowed_hosts = ["mac.example"]\n')
    refused = running.client.post("/admin/v1/reload")
    assert (refused.status_code, "bulkhead key add NAME" in refused.text) == (400, True)
    assert running.client.get("/v1/models", headers={"Host": "mac.example"}).status_code == 403
    key = running.client.post("/admin/v1/keys", json={"name": "phone"}).json()["key"]
    admin = {"x-api-key": (running.state_dir / "admin.key").read_text().strip()}
    assert running.client.post("/admin/v1/reload", headers=admin).status_code == 200
    assert running.client.get("/v1/models", headers=proxied).status_code == 401
    theirs = {**proxied, "Authorization": f"Bearer {key}"}
    assert running.client.get("/v1/models", headers=theirs).status_code == 200
    assert running.client.get("/admin/v1/status", headers=theirs).status_code == 403


@pytest.mark.slow
def test_a_page_cannot_push_itself_before_others(
    start_gateway: Callable[..., Gateway], tmp_path: Path
) -> None:
    held = tmp_path / "held"
    held.touch()
    running = start_gateway(
        models=(),
        config="""
        [gateway]
        allowed_origins = ["https://chat.example"]
        [models.demo]
        path = "demo"
        max_concurrency = 1
        """,
        environment=sitecustomize(tmp_path / "site", held_steps(held)),
    )
    running.load()
    page = {"Origin": "https://chat.example", "X-Priority": "1000"}
    open_stream(running, "Tell me a story.", max_tokens=10)
    eventually(lambda: running.model()["active_requests"] == 1)
    others = []
    for waiting, (headers, priority) in enumerate(
        [({}, 0), (page, 0), ({"Origin": page["Origin"]}, 1000), ({}, 1)], 1
    ):
        stream = open_stream(
            running, "Hello", headers=headers, priority=priority, max_tokens=5, ignore_eos=True
        )
        others.append(stream)
        eventually(lambda w=waiting: running.model()["queue_depth"] == w)
    held.unlink()
    ended = [other.join().arrivals[0] for other in others]
    assert sorted(range(4), key=ended.__getitem__) == [3, 0, 1, 2]


# Ids


@pytest.mark.parametrize("stream", [False, True])
def test_request_has_the_same_id_throughout(gateway: Gateway, stream: bool) -> None:
    mine = f"mine-{stream}/7"
    answer = gateway.client.post(CHAT, json=_body(2, stream=stream), headers={"X-Request-Id": mine})
    assert answer.headers["x-request-id"] == mine
    found = re.search(r'"id":"([^"]*)"', answer.text)
    assert found is not None
    assert found[1] == f"chatcmpl-{mine}"
    line = eventually(lambda: _line(gateway, mine))
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
    assert (line["model"], line["completion_tokens"], line["level"]) == ("demo", 2, "info")
    assert line["seconds"] > 0


def _line(gateway: Gateway, request: str) -> dict[str, Any] | None:
    path = gateway.state_dir / "logs" / "gateway.log"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return next((line for line in lines if line.get("request") == request), None)


def test_an_id_is_made_where_none_is_sane(gateway: Gateway) -> None:
    for given in ("", "a b", "x" * 200, "\\"):
        answer = gateway.client.post(
            "/v1/completions",
            json={"model": "demo", "prompt": "Hello", "max_tokens": 1},
            headers={"X-Request-Id": given},
        )
        made = answer.headers["x-request-id"]
        assert made.startswith("req_")
        assert answer.json()["id"] == f"cmpl-{made}"
    refused = gateway.client.post(CHAT, json={}, headers={"X-Request-Id": "bad-one"})
    assert (refused.status_code, refused.headers["x-request-id"]) == (400, "bad-one")
    assert eventually(lambda: _line(gateway, "bad-one"))["status"] == 400


def test_two_at_once_with_one_id(gateway: Gateway) -> None:
    streams = [
        open_stream(gateway, "Tell me a story.", headers={"X-Request-Id": "both"}, max_tokens=10)
        for _ in range(2)
    ]
    outcomes = [stream.join().text for stream in streams]
    assert outcomes[0] == outcomes[1] != ""
    assert all(stream.done for stream in streams)


def test_events_carry_it(gateway: Gateway) -> None:
    too_long = {"X-Request-Id": "too-long", "X-Deadline-S": "0.001"}
    answer = gateway.client.post(CHAT, json=chat_body("word " * 20_000), headers=too_long)
    assert answer.status_code in (400, 504)
    parked = {"X-Request-Id": "parked"}
    # Five seconds, so that it still runs when somebody has seen that it does.
    fields = {"max_tokens": 100, "ignore_eos": True}
    stream = open_stream(gateway, "Tell me a story.", headers=parked, **fields)
    eventually(lambda: stream.text, START_S)
    gateway.order("restart", force=True).raise_for_status()
    assert stream.join().done
    assert {event["request"] for event in gateway.events("park")} == {"parked"}


# Bytes that are no request


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GARBAGE\r\n\r\n",
        b"GET /livez HTTP/9.9\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n" + HOST + b"\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"POST /livez HTTP/1.1\r\n" + HOST + b"Content-Length: x\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request(gateway: Gateway, data: bytes) -> None:
    answer = ask(gateway, data)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")
    name = answer.headers["x-request-id"]
    assert eventually(lambda: _line(gateway, name))["status"] == 400


@pytest.mark.parametrize("parts", [1, 500])
def test_a_head_has_a_bound(gateway: Gateway, parts: int) -> None:
    memory = psutil.Process(gateway.pid).memory_info().rss
    header = b"X-Long: " if parts == 1 else b""
    with connect(gateway) as connection:
        send(connection, b"GET /livez HTTP/1.1\r\n" + HOST + header)
        for number in range(parts):
            name = b"" if parts == 1 else b"X-%d: " % number
            send(connection, name + b"x" * (8_000_000 // parts) + (b"" if parts == 1 else b"\r\n"))
        answer = parse(read_all(connection))
    assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
    assert psutil.Process(gateway.pid).memory_info().rss - memory < 20e6


@pytest.mark.parametrize(
    "framing",
    [b"0\r\n" + b"X-A: b\r\n" * 100_000, b"1;" + b"x" * 800_000],
    ids=["trailers", "chunk"],
)
def test_a_body_is_not_mostly_framing(gateway: Gateway, framing: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = ask(gateway, head + framing)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")
    assert answer.headers["x-request-id"]


def test_chunks_and_trailers_of_the_usual_size(gateway: Gateway) -> None:
    text = json.dumps({"model": "demo", "prompt": "Hello", "max_tokens": 1}).encode()
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % number for number in text) + b"0\r\nX-Sum: 1\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Connection: close\r\n"
    answer = ask(gateway, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert (answer.status, json.loads(answer.body)["object"]) == (200, "text_completion")


def test_upgrades_are_not_taken_and_not_fatal(gateway: Gateway) -> None:
    for name in (b"h2c", b"websocket"):
        headers = b"Connection: close, Upgrade\r\nUpgrade: %s\r\n" % name
        answer = ask(gateway, b"GET /livez HTTP/1.1\r\n" + HOST + headers + b"\r\n")
        assert (answer.status, answer.body) == (200, b"ok\n")


# Clients that leave, and those that only look so


def test_pipelining_client_that_leaves_is_noticed(gateway: Gateway) -> None:
    for behind in (get("/livez"), get("/livez") * 100, post(CHAT, b"x" * 1_000_000), b"GET"):
        with connect(gateway) as connection:
            send(connection, post(CHAT, _body(3000)))
            eventually(lambda: not _idle(gateway))
            # The rest may not be taken any more.
            connection.settimeout(2)
            with contextlib.suppress(OSError):
                connection.sendall(behind)
        eventually(lambda: _idle(gateway))


def test_pipelined_requests_are_answered_in_their_order(gateway: Gateway) -> None:
    paths = ["/livez", "/readyz", "/nowhere"]
    with connect(gateway) as connection:
        send(connection, post(CHAT, _body(3)) + b"".join(map(get, paths[:2])))
        time.sleep(0.1)
        send(connection, post(CHAT, _body(3)) + get(paths[2], "Connection: close"))
        received = read_all(connection)
    statuses = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert statuses == [b"200"] * 4 + [b"404"]
    assert received.index(b"chat.completion") < received.index(b"ok\n") < received.index(b"serving")


def test_more_behind_an_answer_than_is_kept(gateway: Gateway) -> None:
    with connect(gateway) as connection:
        # It lasts longer than the rest takes to come.
        send(connection, post(CHAT, _body(60)))
        time.sleep(0.1)
        threading.Thread(target=send, args=(connection, get("/livez") * 20_000)).start()
        received = read_all(connection)
    assert parse(received).status == 200
    assert b'"finish_reason":"length"' in received, "it is whole"
    assert received.count(b"HTTP/1.1 ") <= 17


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [5, 60])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_half_closed_clients_get_their_answer(
    gateway: Gateway, stream: bool, tokens: int, version: str
) -> None:
    with connect(gateway) as connection:
        send(connection, post(CHAT, _body(tokens, stream=stream), version=version))
        connection.shutdown(socket.SHUT_WR)
        received = read_all(connection)
    answer = parse(received)
    assert answer.status == 200
    assert b'"finish_reason":"length"' in answer.body
    assert (b"[DONE]" in answer.body) == stream


@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_differs_from_a_half_closed_connection(
    gateway: Gateway, stream: bool
) -> None:
    with connect(gateway) as connection:
        send(connection, post(CHAT, _body(3000, stream=stream)))
        eventually(lambda: not _idle(gateway))
        if stream:
            connection.recv(1)
    eventually(lambda: _idle(gateway))


def test_a_body_that_ends_too_early(gateway: Gateway) -> None:
    with connect(gateway) as connection:
        send(connection, post(CHAT, _body())[:-5])
        connection.shutdown(socket.SHUT_WR)
        answer = parse(read_all(connection))
    assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")
    assert answer.headers["x-request-id"]


def test_http_1_0_gets_no_chunks(gateway: Gateway) -> None:
    answer = ask(gateway, post(CHAT, _body(5, stream=True), version="1.0"))
    assert answer.status == 200
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == "close"
    events = [word for word in answer.body.decode().split("\n\n") if word]
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    whole = ask(gateway, b"GET /v1/models HTTP/1.0\r\n\r\n")
    assert (whole.status, json.loads(whole.body)["object"]) == (200, "list")


def test_a_list_with_a_slash(gateway: Gateway) -> None:
    assert gateway.client.get("/v1/models/").json() == gateway.client.get("/v1/models").json()


def test_a_body_that_declares_too_much_is_not_waited_for(gateway: Gateway) -> None:
    with connect(gateway) as connection:
        lines = [f"POST {CHAT} HTTP/1.1", "Host: localhost", "Content-Length: 99999999999"]
        lines += ["Expect: 100-continue", "Connection: close", "", ""]
        send(connection, "\r\n".join(lines).encode())
        answer = parse(read_all(connection))
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_a_refused_body_can_be_sent_to_its_end(gateway: Gateway) -> None:
    with httpx.Client(base_url=gateway.url) as client:
        for _ in range(2):
            answer = client.post("/nowhere", content=b"x" * 3_000_000)
            assert answer.status_code == 404
        answer = client.post(CHAT, content=b" " * (33 << 20))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert client.get("/livez").status_code == 200
