"""Gateways behind gateways: one that has no model of its own, a second one, and a third behind."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.gateway import BULKHEAD, START_S, Gateway, chat_body, eventually
from tests.support.pictures import RED, data_url, png
from tests.support.ports import free_port
from tests.support.raw_server import CHUNKED, chunk, serving, whole
from tests.support.streams import open_stream
from tests.support.upstreams import behind, listed, reload_with, upstream_of, upstreams

STORY = "Tell me a story."
PICTURE = {"type": "image_url", "image_url": {"url": data_url(png(RED))}}
SAME = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
# Longer than any test looks on.
LONG = {"temperature": 0, "max_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def three() -> Iterator[tuple[Gateway, Gateway, Gateway]]:
    """The first has the second and the third as upstreams, and the second has the third."""
    with ExitStack() as stack:
        third = stack.enter_context(behind(models=("demo",)))
        second = stack.enter_context(behind(third=third, models=("demo",)))
        first = stack.enter_context(behind(second=second, third=third))
        eventually(lambda: len(listed(first)) == 3)
        yield first, second, third


Three = tuple[Gateway, Gateway, Gateway]


class TestLists:
    def test_every_model_is_there_once_for_each_way(self, three: Three) -> None:
        first, second, third = three
        third.load()
        eventually(lambda: listed(first)["third/demo"]["state"] == "ready")
        eventually(lambda: listed(first)["second/third/demo"]["state"] == "ready")
        models = listed(first)
        assert set(models) == {"second/demo", "second/third/demo", "third/demo"}
        assert [len(models[model]["via"]) for model in sorted(models)] == [2, 3, 2]
        assert models["third/demo"]["owned_by"] == "third"
        assert models["third/demo"]["aliases"] == ["demo"]
        assert models["third/demo"]["floor_bytes"] is None
        assert set(listed(second)) == {"demo", "third/demo"}
        shown = first.client.get("/v1/models/second/third/demo").json()
        assert shown["id"] == "second/third/demo"
        assert first.client.get("/v1/models/second/none").status_code == 404

    def test_the_status_has_them_apart_and_without_memory(self, three: Three) -> None:
        first, _, third = three
        status = first.status()
        assert status["models"] == []
        second, last = status["upstreams"]
        assert (second["name"], last["name"]) == ("second", "third")
        assert last["url"] == f"{third.url}/v1"
        assert last["reachable"]
        assert last["bulkhead"]
        assert {model["id"] for model in second["models"]} == {"demo", "third/demo"}
        printed = subprocess.run(
            [BULKHEAD, "status", "--url", first.url], capture_output=True, text=True, check=True
        ).stdout
        assert "second/third/demo" in printed
        metrics = first.client.get("/metrics").text
        assert 'bulkhead_upstream_reachable{upstream="third"} 1.0' in metrics

    def test_the_metrics_have_how_long_it_takes_to_answer(self, three: Three) -> None:
        first, _, third = three
        third.load()
        first.say("hi", "third/demo", max_tokens=2)
        metrics = first.client.get("/metrics").text
        counted = re.search(r'upstream_answer_seconds_count{upstream="third"} ([0-9.]+)', metrics)
        assert counted is not None
        assert float(counted[1]) >= 1
        assert 'bulkhead_upstream_failures_total{upstream="third"} 0.0' in metrics

    def test_a_model_of_an_upstream_is_not_steered_from_here(self, three: Three) -> None:
        refused = three[0].order("load", "third/demo")
        assert refused.status_code == 400
        assert "is a model of an upstream" in refused.text
        unknown = three[0].chat("hi", "third/dem")
        assert unknown.status_code == 404
        assert "third/demo" in unknown.json()["error"]["message"]


class TestAnswers:
    @pytest.mark.parametrize("model", ["demo", "third/demo", "second/demo", "second/third/demo"])
    def test_streams_are_the_same_as_without_a_gateway_between(
        self, three: Three, model: str
    ) -> None:
        first, _, third = three
        usage = {"stream_options": {"include_usage": True}}
        direct = open_stream(third, STORY, **SAME, **usage).join()
        passed = open_stream(first, STORY, model, **SAME, **usage).join()
        assert direct.done
        assert passed.outcome == direct.outcome

    def test_other_paths(self, three: Three) -> None:
        first, _, third = three
        with openai.OpenAI(base_url=f"{first.url}/v1", api_key="x") as client:
            text = client.completions.create(model="third/demo", prompt="Once", **_plain(SAME))
            here = third.client.post(
                "/v1/completions", json={"model": "demo", "prompt": "Once"} | SAME
            )
            assert text.choices[0].text == here.json()["choices"][0]["text"]
            response = client.responses.create(model="third/demo", input="hi", max_output_tokens=20)
            assert response.output_text
        message = chat_body("hi", "third/demo", max_tokens=20)
        answer = first.client.post("/v1/messages", json=message).json()
        assert answer["content"][0]["text"]

    @pytest.mark.parametrize("model", ["third/demo", "demo"])
    def test_tokens_are_counted_there(self, three: Three, model: str) -> None:
        first, _, third = three
        for path, asked in (
            ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": STORY}]}),
            ("/v1/responses/input_tokens", {"input": STORY}),
        ):
            passed = first.client.post(path, json={"model": model, **asked})
            assert passed.status_code == 200, passed.text
            direct = third.client.post(path, json={"model": "demo", **asked})
            assert passed.json() == direct.json()

    def test_nothing_is_stored_there(self, three: Three) -> None:
        first, _, third = three
        asked = {"model": "third/demo", "input": STORY, "max_output_tokens": 4}
        for given in ({}, {"store": True}, {"background": False, "previous_response_id": None}):
            answer = first.client.post("/v1/responses", json=asked | given)
            assert answer.status_code == 200, answer.text
            assert answer.json()["store"] is False
            path = f"/v1/responses/{answer.json()['id']}"
            assert third.client.get(path).status_code == 404
        for name, value in (
            ("background", True),
            ("previous_response_id", "resp_1"),
            ("conversation", "conv_1"),
        ):
            refused = first.client.post("/v1/responses", json=asked | {name: value})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == name
            assert "send the whole conversation as input" in refused.text
        kept = first.chat("hi", "third/demo", {"x-mailbox": "keep"})
        assert (kept.status_code, kept.json()["error"]["param"]) == (400, "X-Mailbox")
        compacted = first.client.post("/v1/responses/compact", json=asked)
        assert compacted.status_code == 200, compacted.text
        assert compacted.json()["output"][-1]["type"] == "compaction"

    @pytest.mark.parametrize(
        "fields",
        [
            {"n": 2, "logprobs": True, "top_logprobs": 2},
            {
                "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}],
                "tool_choice": "required",
            },
            {"messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": "?"}]}]},
        ],
        ids=["answers", "tools", "a picture"],
    )
    def test_fields_are_the_upstream_s_matter(self, three: Three, fields: dict[str, Any]) -> None:
        first, _, third = three
        fields = {"temperature": 0, "max_tokens": 40, **fields}
        passed, direct = first.chat(STORY, "third/demo", **fields), third.chat(STORY, **fields)
        assert passed.status_code == direct.status_code
        assert _of_choices(passed.json()) == _of_choices(direct.json())

    def test_ollama_s_paths_reach_another_bulkhead(self, three: Three) -> None:
        first, _, third = three
        names = {model["name"] for model in first.client.get("/api/tags").json()["models"]}
        assert names == {f"{text}:latest" for text in listed(first)}
        message = {"role": "user", "content": "hi"}
        options = {"temperature": 0, "num_predict": 8}
        body = {"messages": [message], "options": options}

        def text(gateway: Gateway, model: str) -> str:
            lines = gateway.client.post(
                "/api/chat", json={"model": model, **body}
            ).text.splitlines()
            return "".join(json.loads(line)["message"]["content"] for line in lines)

        assert text(first, "third/demo:latest") == text(third, "demo") != ""
        shown = first.client.post("/api/show", json={"name": "third/demo:latest"}).json()
        assert (
            shown["capabilities"]
            == third.client.post("/api/show", json={"model": "demo"}).json()["capabilities"]
        )

    def test_the_request_has_the_same_id_on_its_whole_way(self, three: Three) -> None:
        first, second, third = three
        answer = first.chat("hi", "second/third/demo", {"x-request-id": "one-id"}, max_tokens=2)
        assert answer.headers["x-request-id"] == "one-id"
        for gateway in (second, third):
            eventually(lambda item=gateway: "one-id" in item.client.get("/admin/v1/logs").text)

    def test_refusals_come_back_as_they_are(self, three: Three) -> None:
        refused = three[0].chat("hi", "third/demo", max_tokens=-2)
        assert refused.status_code == 400
        assert refused.json() == three[2].chat("hi", max_tokens=-2).json()

    @pytest.mark.slow
    def test_the_loaded_one_gets_the_requests(self, three: Three) -> None:
        first, second, third = three
        second.order("unload").raise_for_status()
        third.load()
        eventually(lambda: _states(first) == ("unloaded", "ready"))
        for _ in range(3):
            first.chat("hi", max_tokens=2).raise_for_status()
        assert second.model()["state"] == "unloaded"
        second.load()
        third.order("unload").raise_for_status()
        eventually(lambda: _states(first) == ("ready", "unloaded"))
        for _ in range(3):
            first.chat("hi", "demo", max_tokens=2).raise_for_status()
        assert third.model()["state"] == "unloaded"

    @pytest.mark.slow
    def test_both_loaded_take_turns_by_load(self, three: Three) -> None:
        first, second, third = three
        second.load()
        third.load()
        eventually(lambda: _states(first) == ("ready", "ready"))
        # So long that the first still runs when the last has begun.
        streams = [open_stream(first, STORY, **LONG | {"max_tokens": 1500}) for _ in range(4)]

        def shares() -> list[int]:
            return [upstream["active_requests"] for upstream in first.status()["upstreams"]]

        eventually(lambda: shares() == [2, 2])
        assert all(stream.join().done for stream in streams)
        eventually(lambda: shares() == [0, 0])


def _of_choices(answer: dict[str, Any]) -> object:
    """The choices without the ids of calls, or the whole error."""
    if "choices" not in answer:
        return answer
    for choice in answer["choices"]:
        for call in choice["message"].get("tool_calls") or ():
            call["id"] = ""
    return answer["choices"]


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    known = {key: field for key, field in fields.items() if key != "ignore_eos"}
    return known | {"extra_body": {"ignore_eos": True}}


def _states(first: Gateway) -> tuple[str, str]:
    models = listed(first)
    return models["second/demo"]["state"], models["third/demo"]["state"]


class TestCycles:
    @pytest.mark.slow
    def test_two_that_have_each_other(self) -> None:
        with behind(models=("demo",)) as one, behind(one=one, models=("demo",)) as two:
            eventually(lambda: "one/demo" in listed(two))
            reload_with(one, upstreams(two=two))
            eventually(lambda: "two/demo" in listed(one))
            # Time for several looks each way.
            time.sleep(5)
            assert set(listed(one)) == {"demo", "two/demo"}
            assert set(listed(two)) == {"demo", "one/demo"}
            assert one.chat("hi", "two/one/demo").status_code == 404
            assert one.say("hi", "two/demo", max_tokens=2)

    def test_itself(self) -> None:
        with behind(models=("demo",)) as one:
            reload_with(one, upstreams(me=one))
            (me,) = eventually(lambda: [e for e in upstream_of(one) if e["reason"]])
            eventually(lambda: "is this gateway itself" in upstream_of(one)[0]["reason"])
            assert me["models"] == []
            refused = one.chat("hi", "me/demo")
            assert refused.status_code == 503
            assert one.say("hi", max_tokens=2)

    def test_a_request_that_comes_back_is_refused(self, three: Three) -> None:
        first = three[0]
        instance = listed(first)["third/demo"]["via"][0]
        refused = first.chat("hi", headers={"via": f"1.1 bulkhead-{instance}"})
        assert refused.status_code == 508
        assert refused.json()["error"]["code"] == "loop_detected"
        assert refused.headers["x-should-retry"] == "false"


class TestDeaths:
    @pytest.mark.slow
    def test_in_mid_answer_it_is_said_and_before_another_one_answers(self) -> None:
        with (
            behind(models=("demo",)) as one,
            behind(models=("demo",)) as two,
            behind(one=one, two=two) as first,
        ):
            one.load()
            eventually(lambda: listed(first)["one/demo"]["state"] == "ready")
            stream = open_stream(first, STORY, **LONG)
            eventually(lambda: stream.text, START_S)
            one.process.kill()
            stream.join()
            assert not stream.done
            assert stream.events == ["error"]
            assert stream.error["code"] == "bad_gateway"
            assert "The upstream 'one'" in stream.error["message"]
            # The first one is believed to be there, until a request or a look finds out.
            assert first.say("hi", max_tokens=2)
            eventually(lambda: listed(first)["one/demo"]["state"] == "backoff")
            refused = first.chat("hi", "one/demo")
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "model_unavailable"
            assert int(refused.headers["retry-after"]) >= 1
            assert first.say("hi", max_tokens=2)

    @pytest.mark.slow
    def test_while_a_request_waits_there_another_one_answers(self) -> None:
        """The upstream has begun a stream of comments, as its model loads, and dies."""

        async def wait_and_die(head: bytes, reader: Any, writer: Any) -> None:
            if b"GET" in head:
                writer.write(whole(b'{"data": [{"id": "demo", "state": "ready", "via": ["x"]}]}'))
                return
            writer.write(CHUNKED % b"text/event-stream")
            for _ in range(3):
                writer.write(chunk(b": waiting\n\n"))
                await asyncio.sleep(0.1)
            writer.transport.abort()

        async def run() -> tuple[str, int]:
            async with serving(wait_and_die) as (raw, server):
                config = _table("raw", server.port) + upstreams(two=two)
                first = await asyncio.to_thread(Gateway, config=config, models=())
                try:
                    await asyncio.to_thread(eventually, lambda: len(listed(first)) == 2)
                    text = await asyncio.to_thread(first.say, "hi", max_tokens=2)
                    stream = open_stream(first, "hi", max_tokens=2)
                    await asyncio.to_thread(stream.join)
                    assert stream.text == text
                    return text, sum(b"POST" in head for head in raw.heads)
                finally:
                    await asyncio.to_thread(first.stop)

        with behind(models=("demo",)) as two:
            two.load()
            text, asked = asyncio.run(run())
            assert text == two.say("hi", max_tokens=2)
            assert asked >= 1, "it was asked first, or at its turn"

    @pytest.mark.slow
    def test_an_upstream_that_drains_ends_what_runs(self) -> None:
        with behind(models=("demo",)) as one, behind(one=one) as first:
            eventually(lambda: listed(first))
            stream = open_stream(first, STORY, "one/demo", **LONG | {"max_tokens": 400})
            eventually(lambda: stream.text, START_S)
            first.process.send_signal(signal.SIGTERM)
            assert stream.join().done, "the gateway between waits for what it passes on"


class TestBadOnes:
    @pytest.mark.slow
    def test_hanging_upstream_delays_nothing(self) -> None:
        """It lists its models and never answers; others and own models do, and its clients are
        told after its time.
        """

        async def hang(head: bytes, reader: Any, writer: Any) -> None:
            if b"GET" in head:
                writer.write(whole(b'{"data": [{"id": "slow"}]}'))
                return
            await asyncio.sleep(60)

        async def run() -> None:
            async with serving(hang) as (_, server):
                config = _table("bad", server.port, silence_s=2)
                first = await asyncio.to_thread(Gateway, config=config)
                try:
                    await asyncio.to_thread(eventually, lambda: "bad/slow" in listed(first))
                    await asyncio.to_thread(first.load)
                    waiting = asyncio.to_thread(first.chat, "hi", "bad/slow")
                    refused, own = await asyncio.gather(
                        waiting, asyncio.to_thread(first.say, "hi", max_tokens=2)
                    )
                    assert own
                    assert refused.status_code == 504
                    assert "The upstream 'bad' sent no answer within 2 s" in refused.text
                    for _ in range(2):
                        await asyncio.to_thread(first.chat, "hi", "bad/slow")
                    refused = await asyncio.to_thread(first.chat, "hi", "bad/slow")
                    assert refused.status_code == 503, "the breaker is open"
                    assert "3 requests in a row have failed" in refused.text
                finally:
                    await asyncio.to_thread(first.stop)

        asyncio.run(run())

    def test_missing_upstream_is_reported_at_once(self) -> None:
        gateway = Gateway(config=_table("gone", free_port()), models=())
        try:
            began = time.monotonic()
            refused = gateway.chat("hi", "gone/model")
            assert refused.status_code == 503
            assert "can't be reached" in refused.json()["error"]["message"]
            assert time.monotonic() - began < 30
            assert gateway.chat("hi", "model").status_code == 404
        finally:
            gateway.stop()


def _table(name: str, port: int, **keys: Any) -> str:
    lines = [f"[upstreams.{name}]", f'url = "http://127.0.0.1:{port}/v1"']
    return "\n".join([*lines, *(f"{key} = {json.dumps(item)}" for key, item in keys.items()), ""])


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Gateway]]:
    """Both have keys: the first shows its own at the upstream, and asks its callers for others."""
    file = tmp_path_factory.mktemp("keys") / "box.key"
    with behind(models=("demo",)) as box:
        _make_key(box, "gateway", file)
        table = upstreams(box=box) + f'key_file = "{file}"\n'
        first = Gateway(config=table, models=())
        try:
            eventually(lambda: listed(first))
            yield first, box
        finally:
            first.stop()


class TestKeys:
    def test_rights_usage_and_limits_are_those_of_the_first(
        self, keyed: tuple[Gateway, Gateway]
    ) -> None:
        first, box = keyed
        headers = {"authorization": f"Bearer {_operator(first)}"}
        made = {}
        for name, terms in (
            ("may", {"models": ["box/demo"], "rpm": 2}),
            ("bare", {"models": ["demo"]}),
            ("others", {"models": ["other"]}),
        ):
            body = {"name": name, **terms}
            answer = first.client.post("/admin/v1/keys", json=body, headers=headers)
            made[name] = {"authorization": f"Bearer {answer.raise_for_status().json()['key']}"}
        assert first.chat("hi", "box/demo").status_code == 401
        assert first.client.get("/v1/models", headers=made["others"]).json()["data"] == []
        assert first.chat("hi", "box/demo", made["others"]).status_code == 404
        ollama = {**chat_body("hi", "demo"), "options": {"num_predict": 4}}
        answer = first.client.post("/api/chat", json=ollama, headers=made["bare"])
        assert answer.status_code == 200, answer.text
        for name, model in (("may", "box/demo"), ("may", "demo"), ("bare", "demo")):
            answer = first.chat("hi", model, made[name], max_tokens=3)
            assert answer.status_code == 200, answer.text
            # The limits are the client's own, not those of the gateway's key.
            assert answer.headers.get_list("x-ratelimit-limit-requests") == (
                ["2"] if name == "may" else []
            )
        assert first.chat("hi", "box/demo", made["may"]).status_code == 429
        stream = open_stream(first, "hi", headers=made["bare"], max_tokens=5).join()
        assert stream.done
        assert stream.usage is None, "it hasn't asked for it, but it counts"
        asks = {"stream_options": {"include_usage": True}}
        stream = open_stream(first, "hi", headers=made["bare"], max_tokens=5, **asks).join()
        assert stream.usage is not None

        def completed(gateway: Gateway, name: str) -> int:
            shown = {"authorization": f"Bearer {_operator(gateway)}"}
            keys = gateway.client.get("/admin/v1/usage", headers=shown).json()["keys"]
            count: int = next(e for e in keys if e["name"] == name)["today"]["completion_tokens"]
            return count

        eventually(lambda: completed(first, "may") == 6)
        eventually(lambda: completed(first, "bare") == 17)
        eventually(lambda: completed(box, "gateway") == 23)

    def test_patterns_and_the_other_limits(self, keyed: tuple[Gateway, Gateway]) -> None:
        first, _ = keyed
        made = {
            name: _key(first, name, **terms)
            for name, terms in (
                ("all-of-box", {"models": ["box/*"]}),
                ("elsewhere", {"models": ["attic/*"]}),
                ("few-tokens", {"tpm": 10}),
                ("one", {"concurrent": 1}),
            )
        }
        assert first.chat("hi", "demo", made["all-of-box"], max_tokens=1).status_code == 200
        assert first.chat("hi", "box/demo", made["elsewhere"]).status_code == 404
        assert first.chat("hi", "box/demo", made["few-tokens"], max_tokens=5).status_code == 200
        # The tokens count once the answer has ended.
        eventually(lambda: first.chat("hi", "box/demo", made["few-tokens"]).status_code == 429)
        stream = open_stream(first, STORY, "box/demo", made["one"], **LONG)
        eventually(lambda: stream.text, START_S)
        refused = first.chat("hi", "box/demo", made["one"])
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            429,
            "rate_limit_exceeded",
        )
        gateway_key = {"authorization": f"Bearer {_operator(first)}"}
        first.client.delete("/admin/v1/keys/one", headers=gateway_key).raise_for_status()
        assert not stream.join().done, "its key was revoked"

    @pytest.mark.slow
    def test_a_key_that_is_not_taken_is_the_operators_matter(self, tmp_path: Path) -> None:
        file = tmp_path / "wrong.key"
        file.touch(0o600)
        file.write_text("bk-wrong")
        with behind(models=("demo",)) as box:
            _make_key(box, "gateway", tmp_path / "right.key")
            gateway = Gateway(config=upstreams(box=box) + f'key_file = "{file}"\n', models=())
            try:
                refused = gateway.chat("hi", "box/demo")
                assert refused.status_code == 503, "a client's own key isn't wrong"
                assert "doesn't take the key" in refused.text
                file.write_text((tmp_path / "right.key").read_text())
                assert eventually(
                    lambda: gateway.chat("hi", "box/demo").status_code == 200, START_S
                )
            finally:
                gateway.stop()


def _operator(gateway: Gateway) -> str:
    return (gateway.state_dir / "admin.key").read_text().strip()


def _key(gateway: Gateway, name: str, **terms: Any) -> dict[str, str]:
    """The header of a new key."""
    answer = gateway.client.post(
        "/admin/v1/keys",
        json={"name": name, **terms},
        headers={"authorization": f"Bearer {_operator(gateway)}"},
    )
    return {"authorization": f"Bearer {answer.raise_for_status().json()['key']}"}


def _make_key(gateway: Gateway, name: str, file: Path) -> None:
    answer = gateway.client.post("/admin/v1/keys", json={"name": name}).raise_for_status()
    file.touch(0o600)
    file.write_text(answer.json()["key"])
