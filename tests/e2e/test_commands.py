"""Models that are commands: any server, with the life of a worker."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.support import platforms
from tests.support.commands import all_gone, guarded, serving, table
from tests.support.gateway import START_S, Gateway, chat_body, eventually
from tests.support.raw_http import HOST, RawResponse, ask, connect, get, post, read_all, send

MEMORY = {"memory": "200MB"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    config = (
        table("plain", "--child", name="there", paths=["/own"], **MEMORY)
        + table("pipe", place="--socket={socket}", **MEMORY)
        + table("slow", "--slow-start", "3", **MEMORY)
        + table("late", "--slow-start", "600", **MEMORY)
        + table("aside", "--slow-start", "2", "--host=127.0.0.2", **MEMORY)
        + table("flood", "--flood", **MEMORY)
        + table("daemon", "--daemon", **MEMORY)
        + table("stubborn", "--ignore-sigterm", "--child", **MEMORY)
        + table("broken", "--fail", **MEMORY)
        + table(
            "one",
            max_concurrency=1,
            paths=["/own"],
            environment={"OWN": "at {port}", "KEY": "{key}"},
            **MEMORY,
        )
    )
    secret = {"BULKHEAD_ADMIN_KEY": "secret-1", "SOME_TOKEN": "secret-2"}
    with serving(config, environment=secret) as gateway:
        yield gateway


def test_chats_pass_as_they_are(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x") as client:
        message = {"role": "user", "content": "hi"}
        whole = client.chat.completions.create(model="plain", messages=[message])
        assert whole.choices[0].message.content == "there", "the model's name at the server"
        assert whole.usage.total_tokens == 5
        stream = client.chat.completions.create(model="plain", messages=[message], stream=True)
        texts = [item.choices[0].delta.content or "" for item in stream if item.choices]
        assert "".join(texts) == "0 1 2 3 4 "
    listed = gateway.client.get("/v1/models/plain").json()
    assert listed["abilities"] is None, "its server doesn't tell"


def test_sound_goes_there_and_back(gateway: Gateway) -> None:
    sound = ("a.wav", b"\0" * 3_000_000)
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
        heard = client.audio.transcriptions.create(model="plain", file=sound)
        assert heard.text == "transcriptions heard"
        events = list(client.audio.transcriptions.create(model="plain", file=sound, stream=True))
        assert [event.delta for event in events[:-1]] == ["he", "ard"]
        assert events[-1].type == "transcript.text.done"
        english = client.audio.translations.create(model="plain", file=sound)
        assert english.text == "translations heard"
        with client.audio.speech.with_streaming_response.create(
            model="plain", voice="v", input="hello", extra_body={"pause_s": 100}
        ) as spoken:
            assert spoken.headers["content-type"] == "audio/wav"
            pieces = spoken.iter_bytes()
            assert len(next(pieces)) == 2000, "what has been spoken comes before the rest"
            guarded(gateway, "plain")[0].kill()
            with pytest.raises(Exception, match="peer closed connection"):
                next(pieces)
    files = {"file": sound, "model": (None, "plain")}
    answer = gateway.client.post("/v1/audio/transcriptions", files=files).json()
    assert answer["model"] == "there", "the model may come after the file"


def test_pictures_are_made_and_changed(gateway: Gateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x") as client:
        asked = {"model": "plain", "prompt": "a ship"}
        whole = client.images.generate(**asked).data[0].b64_json
        assert len(base64.b64decode(whole)) == 210_000
        events = list(client.images.generate(**asked, stream=True, partial_images=1))
        assert [event.type for event in events] == [
            "image_generation.partial_image",
            "image_generation.completed",
        ]
        assert all(event.b64_json == whole for event in events)
        picture = ("a.png", base64.b64decode(whole))
        assert client.images.edit(**asked, image=picture).data[0].b64_json == whole
        events = list(client.images.edit(**asked, image=[picture, picture], stream=True))
        assert events[-1].type == "image_edit.completed"


@pytest.mark.slow
def test_a_form_streams_through_within_bounds_of_its_own(gateway: Gateway) -> None:
    def transcribe(*fields: tuple[str, tuple[str | None, str | bytes]]) -> httpx.Response:
        return gateway.client.post("/v1/audio/transcriptions", files=list(fields))

    model = ("model", (None, "slow"))
    cold = transcribe(model, ("file", ("a.wav", b"\0" * 20_000_000)))
    assert cold.json()["bytes"] > 20_000_000, "it waits for the load, and nobody is late"
    before = psutil.Process(gateway.pid).memory_info().rss
    large = transcribe(model, ("file", ("a.wav", b"\0" * 200_000_000)))
    assert large.json()["bytes"] > 200_000_000
    assert psutil.Process(gateway.pid).memory_info().rss - before < 60_000_000
    late = transcribe(("file", ("a.wav", b"\0" * 40_000_000)), model)
    assert "send it first" in late.text
    assert "no field model" in transcribe(("other", (None, "x"))).text


def test_a_server_is_asked_on_its_own_paths_and_no_others(gateway: Gateway) -> None:
    headers = {
        "authorization": "Bearer x",
        "cookie": "a=b",
        "accept-language": "kept",
        "x-original-url": "/",
    }
    answer = gateway.client.get("/servers/plain/own/a%20b?c=d", headers=headers)
    assert answer.headers["content-security-policy"] == "sandbox"
    got = answer.json()
    assert got["path"] == "/own/a%20b?c=d"
    names = {header.lower() for header in got["headers"]}
    assert "accept-language" in names
    assert not names & {"cookie", "x-original-url"}
    assert got["headers"]["x-request-id"] == answer.headers["x-request-id"]
    kind, key = got["headers"]["authorization"].split()
    assert (kind, len(key)) == ("Bearer", 43), "a key of this start, and not the client's"
    for other in ("plain/health", "plain/ownership", "no/own", "plain/%2fown", "plain%2f..%2fown"):
        assert _got(gateway, f"/servers/{other}").status == 404, other


@pytest.mark.parametrize(
    "text",
    [
        b'{"model": "plain", "a": ' + b"[" * 200_000,
        b'{"model": "plain", "a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"model": "plain", "\xff": 1}',
        b'{"a": "\xff", "model": "plain"}',
        b'{"model": "plain"',
        b"[]",
    ],
    ids=["deep, open", "deep", "a key", "a text", "cut off", "a list"],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/speech"])
def test_a_body_that_is_no_json_is_refused(gateway: Gateway, path: str, text: bytes) -> None:
    answer = gateway.client.post(path, content=text)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == "invalid_request_error"


def _got(gateway: Gateway, path: str) -> RawResponse:
    return ask(gateway, get(path, "Connection: close"))


@pytest.mark.parametrize(
    "path",
    [
        *("../own", "%2f..%2fhealth", "%2e%2e/health", "..;/health", ".;x/health", "..%5chealth"),
        *("a%5c..%5chealth", "%252e%252e/health", "/health", "%00", "%ff", "a%09"),
    ],
)
def test_a_path_has_one_meaning(gateway: Gateway, path: str) -> None:
    assert _got(gateway, f"/servers/plain/own/{path}").status == 400


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/servers/plain/own%2fsecret", "/own/secret"),
        ("/%73ervers/plain/own/x", "/own/x"),
        ("/servers/pl%61in/own/x", "/own/x"),
        ("/servers/plain%2fown/x", "/own/x"),
        ("/servers/plain/%6fwn/x?a=%2e%2e", "/own/x?a=%2e%2e"),
        ("/servers/plain/own/100%25%20'+@:", "/own/100%25%20'+@:"),
    ],
)
def test_the_server_gets_the_path_that_was_checked(
    gateway: Gateway, path: str, target: str
) -> None:
    assert json.loads(_got(gateway, path).body)["path"] == target


def test_a_command_gets_no_secret_and_its_own_variables(gateway: Gateway) -> None:
    gateway.load("one")
    environment = guarded(gateway, "one")[0].environ()
    assert environment["OWN"].startswith("at ")
    got = gateway.client.get("/servers/one/own").json()
    assert got["headers"]["authorization"] == f"Bearer {environment['KEY']}"
    assert not [name for name, text in environment.items() if "secret-" in text]
    assert "HF_HUB_OFFLINE" not in environment or "HF_HUB_OFFLINE" in os.environ


def test_a_socket_does_as_well(gateway: Gateway) -> None:
    assert gateway.say("hi", "pipe") == "pipe"


def test_features_of_a_worker_are_refused_for_commands_by_name(gateway: Gateway) -> None:
    refused = gateway.client.post("/api/chat", json=chat_body("hi", "plain"))
    assert refused.status_code == 400
    assert "server of its own" in refused.text
    speech = {"model": "demo", "input": "x"}
    assert gateway.client.post("/v1/audio/speech", json=speech).status_code == 404


def test_every_process_ends_with_an_unload(gateway: Gateway) -> None:
    for model in ("plain", "daemon", "stubborn"):
        gateway.load(model)
        processes = guarded(gateway, model)
        assert len(processes) >= (2 if model != "daemon" else 1)
        gateway.order("unload", model).raise_for_status()
        assert all_gone(processes), model
        assert gateway.model(model)["last_exit"]["reason"] == "stopped as asked"


def test_requests_wait_in_turn(gateway: Gateway) -> None:
    body = {"model": "one", "stream": True, "max_tokens": 100, "pause_s": 0.1, "messages": []}
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as first:
        pieces = first.iter_bytes()
        next(pieces)
        late = {"x-deadline-s": "0.2"}
        refused = gateway.chat("hi", "one", headers=late)
        assert refused.json()["error"]["code"] == "deadline_exceeded"
    assert gateway.say("hi", "one") == "one", "the client that left makes room"


def test_a_flood_of_output_is_bounded(gateway: Gateway) -> None:
    gateway.load("flood")
    (log,) = (gateway.state_dir / "logs").rglob("flood.log")
    eventually(lambda: "too much at once" in log.read_text("utf-8", "replace"))
    assert gateway.say("hi", "flood") == "flood"
    assert log.stat().st_size < 8 << 20
    gateway.order("unload", "flood")


@pytest.mark.slow
def test_a_command_that_ends_at_once_says_why(gateway: Gateway) -> None:
    refused = gateway.chat("hi", "broken")
    assert refused.status_code == 503
    assert "this server can't start" in refused.text
    reason = gateway.model("broken")["reason"]
    assert reason.count("exit code") == 1, "the server's own, and not the guard's"
    assert "exit code 1 " in reason


def test_the_death_of_a_server_is_said_and_another_one_starts(gateway: Gateway) -> None:
    gateway.load("plain")
    refused = gateway.chat("hi", "plain", die=3)
    assert refused.status_code == 502
    assert "The server of 'plain'" in refused.json()["error"]["message"]
    eventually(
        lambda: any(
            event["model"] == "plain" and event["code"] == 3 for event in gateway.events("exit")
        )
    )
    # As clients do, which send a request again after a 502.
    eventually(lambda: gateway.chat("hi", "plain").status_code == 200, START_S)


@pytest.mark.parametrize("victim", ["guard", "server"])
def test_a_stream_whose_server_is_killed_ends_with_an_error(gateway: Gateway, victim: str) -> None:
    gateway.load("plain")
    processes = guarded(gateway, "plain")
    body = {"model": "plain", "stream": True, "max_tokens": 1000, "messages": []}
    with gateway.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        guard = gateway.worker_pid("plain")
        os.kill(guard if victim == "guard" else processes[0].pid, signal.SIGKILL)
        rest = list(lines)
    assert "event: error" in rest
    event = json.loads(rest[rest.index("event: error") + 1].removeprefix("data: "))
    assert event["error"]["code"] == "bad_gateway"
    eventually(lambda: all_gone(processes))
    # As clients do, which send a request again after a 502.
    eventually(lambda: gateway.chat("hi", "plain").status_code == 200, START_S)


def test_a_gateway_that_is_killed_leaves_nothing() -> None:
    config = table("plain", "--child", **MEMORY) + table("daemon", "--daemon", **MEMORY)
    with serving(config) as gateway:
        gateway.load("plain")
        gateway.load("daemon")
        left = [*guarded(gateway, "plain"), *guarded(gateway, "daemon")]
        left += [psutil.Process(gateway.worker_pid(text)) for text in ("plain", "daemon")]
        gateway.process.kill()
        eventually(lambda: all_gone(left))


@pytest.mark.slow
def test_a_server_that_is_never_ready_or_talks_nonsense_is_given_up() -> None:
    config = "[workers]\nload_timeout_s = 3\n" + table("never", "--never", **MEMORY)
    config += table("nonsense", "--nonsense", **MEMORY)
    with serving(config) as gateway:
        for model in ("never", "nonsense"):
            refused = gateway.chat("hi", model)
            assert refused.status_code == 503, refused.text
            assert "was not loaded within 3 s" in refused.text


@pytest.mark.slow
def test_a_server_that_hangs_is_replaced() -> None:
    config = "[workers]\nstall_timeout_s = 3\n" + table("w", silence_s=4, **MEMORY)
    with serving(config) as gateway:
        gateway.load("w")
        os.kill(guarded(gateway, "w")[0].pid, signal.SIGSTOP)
        eventually(lambda: bool(gateway.events("hang")))
        assert gateway.say("hi", "w") == "w"


@pytest.mark.slow
def test_the_memory_of_a_command_is_learned() -> None:
    config = table("w", "--eat", "300") + table("broken", "--fail", "--eat", "1")
    with serving(config) as gateway:
        assert gateway.chat("hi", "broken").status_code == 503
        estimated = gateway.client.get("/admin/v1/models/broken/estimate")
        assert "an assumption" in estimated.text, "it was never ready"
        assert gateway.load("w")["floor_bytes"] == 2_000_000_000, "assumed"
        gateway.say("hi", "w", eat=100)
        eventually(lambda: gateway.model("w")["worker"]["peak_footprint_bytes"] > 420_000_000)
        gateway.order("unload", "w").raise_for_status()
        learned = gateway.load("w")["floor_bytes"]
        assert 420_000_000 < learned < 600_000_000, "the peak"


@pytest.mark.parametrize("end", ["unload", "guard", "gateway"])
def test_program_with_hidden_environment_and_no_parent_ends_too(end: str) -> None:
    gateway = Gateway(config=table("hidden", "--hide", **MEMORY), models=())
    try:
        gateway.load("hidden")

        def sleeping() -> list[str]:
            return [
                process.name()
                for process in guarded(gateway, "hidden")
                if process.name() == "sleep"
            ]

        # Nobody waits until a shell's processes in the background are programs of their own.
        eventually(lambda: len(sleeping()) == 2)
        left = guarded(gateway, "hidden")
        if end == "unload":
            gateway.order("unload", "hidden").raise_for_status()
        else:
            victim = gateway.pid if end == "gateway" else gateway.worker_pid("hidden")
            os.kill(victim, signal.SIGKILL)
        eventually(lambda: all_gone(left))
    finally:
        gateway.stop()


def test_files_that_a_command_has_mapped_are_asked_for_at_its_next_start(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(64 << 20))
    config = table("w", "--map", str(weights), files=[str(weights)])
    with serving(config) as gateway:
        asked = gateway.load("w")["floor_bytes"]
        assert asked == (64 << 20) + 500_000_000
        if platforms.LINUX:
            eventually(
                lambda: gateway.model("w")["worker"]["peak_footprint_bytes"] > asked - 500_000_000
            )
        gateway.order("unload", "w").raise_for_status()
        learned = gateway.load("w")["floor_bytes"]
        assert learned == asked or asked - 500_000_000 < learned < 300_000_000


@pytest.mark.slow
def test_a_memory_that_is_too_small_is_spoken_of() -> None:
    config = "[memory]\nbudget = 200_000_000\n"
    config += table("w", "--eat", "300", "--slow-start", "60", memory="60MB")
    with serving(config) as gateway:
        gateway.order("load", "w")
        eventually(lambda: bool(gateway.events("exit")), START_S)
        assert "exit code 0" not in gateway.model("w")["reason"]
        estimated = gateway.client.get("/admin/v1/models/w/estimate")
        assert "raise `memory`" in estimated.text


def test_pinned_preloaded_and_grouped_commands_are_as_workers_are() -> None:
    config = "[memory]\nbudget = 1_000_000_000\n" + '[models.demo]\npath = "demo"\n'
    config += table("kept", pinned=True, preload=True, **MEMORY)
    config += table("pair", **MEMORY)
    config += '[groups.both]\nmodels = ["pair", "demo"]\ntogether = true\n'
    config += table("half", memory="500MB") + table("large", memory="900MB")
    with serving(config) as gateway:
        eventually(lambda: gateway.model("kept")["state"] == "ready", START_S)
        gateway.load("pair")
        eventually(lambda: gateway.model("demo")["state"] == "ready", START_S)
        refused = gateway.chat("hi", "large")
        assert refused.status_code == 507
        assert "kept" in refused.text, "with the model that stays"
        assert gateway.say("hi", "half") == "half"
        states = {model["id"]: model["state"] for model in gateway.status()["models"]}
        assert states["kept"] == states["half"] == "ready"
        assert states["pair"] != "ready"
        before = gateway.worker_pid("kept")
        os.kill(before, signal.SIGKILL)
        eventually(
            lambda: (gateway.model("kept")["worker"] or {"pid": before})["pid"] != before, START_S
        )
        eventually(lambda: gateway.model("kept")["state"] == "ready", START_S)


def test_the_socket_of_a_server_goes_with_its_guard(gateway: Gateway) -> None:
    gateway.load("pipe")
    assert list(gateway.state_dir.rglob("*.server"))
    os.kill(gateway.worker_pid("pipe"), signal.SIGKILL)
    eventually(lambda: gateway.model("pipe")["worker"] is None)
    assert not list(gateway.state_dir.rglob("*.server"))


def test_a_port_that_is_taken_is_no_place(gateway: Gateway) -> None:
    """Spare ports come from the system, so two servers never get one of each other's."""
    gateway.load("plain")
    gateway.load("one")
    ports = set()
    for model in ("plain", "one"):
        (port,) = [
            net_connection.laddr.port
            for net_connection in guarded(gateway, model)[0].net_connections()
            if net_connection.status == psutil.CONN_LISTEN
        ]
        ports.add(port)
    assert len(ports) == 2


def _speak(gateway: Gateway, pause_s: float) -> socket.socket:
    """A client that has the first piece of an answer in plain bytes."""
    body = {"model": "one", "input": "x", "pause_s": pause_s}
    connection = connect(gateway)
    send(connection, post("/v1/audio/speech", body))
    got = b""
    while b"RIFF" not in got:
        got += connection.recv(65536)
    return connection


def _is_free(gateway: Gateway) -> bool:
    return gateway.model("one")["active_requests"] == 0


def test_a_plain_answer_that_pauses_ends_with_its_client(gateway: Gateway) -> None:
    _speak(gateway, pause_s=300.0).close()
    eventually(lambda: _is_free(gateway))


def test_a_client_that_only_stops_sending_gets_the_rest(gateway: Gateway) -> None:
    with _speak(gateway, pause_s=3.0) as connection:
        connection.shutdown(socket.SHUT_WR)
        rest = read_all(connection)
    assert b"RIFF" in rest
    assert rest.endswith(b"0\r\n\r\n")


def test_an_answer_to_head_gives_its_place_back(gateway: Gateway) -> None:
    got = ask(gateway, b"HEAD /servers/one/own HTTP/1.1\r\n%bConnection: close\r\n\r\n" % HOST)
    assert (got.status, got.body) == (200, b"")
    eventually(lambda: _is_free(gateway))


def test_a_form_that_fails_on_a_kept_connection_gives_its_place_back(gateway: Gateway) -> None:
    _speak(gateway, pause_s=0.2).close()
    eventually(lambda: _is_free(gateway))
    part = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    form = part % (b"model", b"one") + part % (b"file", b"x" * 300_000) + part % (b"model", b"y")
    kind = "Content-Type: multipart/form-data; boundary=b"
    for _ in range(2):
        path = "/v1/audio/transcriptions"
        refused = ask(gateway, post(path, form + b"--b--\r\n", kind, "Connection: close"))
        assert refused.status == 400
        eventually(lambda: _is_free(gateway))


@pytest.mark.parametrize("model", ["late", "aside"])
def test_another_program_at_the_port_gets_nothing(gateway: Gateway, model: str) -> None:
    gateway.order("load", model, wait=False).raise_for_status()
    eventually(lambda: gateway.model(model)["worker"] is not None)
    eventually(lambda: len(guarded(gateway, model)) > 0)
    command = guarded(gateway, model)[0].cmdline()
    port = int(next(text for text in command if "--port=" in text).removeprefix("--port="))
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.settimeout(START_S)
        if model == "aside":
            # Its server comes to another address of the same port.
            eventually(lambda: _listens_aside(port))
        for _ in range(3):
            with listening.accept()[0] as connection:
                connection.settimeout(START_S)
                assert connection.recv(1000) == b""
    assert gateway.model(model)["state"] == "loading"
    gateway.order("unload", model, force=True).raise_for_status()


def _listens_aside(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.2", port), START_S):
        return True
    return False


def test_load_known_to_fail_costs_no_other_model_its_memory(tmp_path: Path) -> None:
    absent = '[models.gone]\ncommand = ["no-such-program", "{port}"]\nmemory = "260MB"\n'
    (tmp_path / "config.json").write_text("{}")
    absent += f'[models.broken]\npath = "{tmp_path}"\n'
    budget = "[memory]\nbudget = 400_000_000\n"
    with serving(budget + table("here", memory="260MB") + absent) as gateway:
        cause = "configuration: files missing"
        eventually(lambda: [e for e in gateway.events("state") if e["cause"] == cause])
        gateway.load("here")
        refused = gateway.chat("hi", "gone")
        assert refused.status_code == 503
        assert "There is no program no-such-program" in refused.text
        for model in ("gone", "broken"):
            assert gateway.order("load", model).status_code == 503
            assert gateway.chat("hi", model).status_code == 503
        gateway.client.post("/admin/v1/reload").raise_for_status()
        before = gateway.status()["instance"]
        gateway.client.post("/admin/v1/upgrade").raise_for_status()
        eventually(lambda: gateway.status()["instance"] != before)
        assert gateway.order("load", "gone").status_code == 503
        assert gateway.model("here")["state"] == "ready"
        assert not gateway.events("evict")
