"""The official Ollama client, unmodified, against a running gateway; and what it doesn't show."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from tests.support.gateway import Gateway, eventually
from tests.support.pictures import RED, png

QUESTION = [{"role": "user", "content": "What can you do?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 60}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Of a city", "parameters": SCHEMA},
}


@pytest.fixture(scope="module")
def gateway(own_gateway: Gateway) -> Gateway:
    return own_gateway


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[ollama.Client]:
    client = ollama.Client(host=gateway.url)
    yield client
    client.close()


def test_chats_whole_and_streamed(client: ollama.Client) -> None:
    whole = client.chat("demo", QUESTION, options=GREEDY)
    assert whole.message.content.startswith("You can ask me")
    assert (whole.model, whole.done, whole.done_reason) == ("demo", True, "length")
    assert whole.eval_count == 60
    parts = list(client.chat("demo:latest", QUESTION, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [response.done for response in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert last.model == "demo:latest"
    assert (last.eval_count, last.prompt_eval_count) == (60, whole.prompt_eval_count)
    took = last.load_duration + last.prompt_eval_duration + last.eval_duration
    assert abs(last.total_duration - took) < 1000


def test_streams_unless_told_otherwise(gateway: Gateway) -> None:
    body = {"model": "demo", "messages": QUESTION, "options": GREEDY, "anything": 1}
    streamed = gateway.client.post("/api/chat", json=body)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    assert len(lines) > 1
    assert lines[-1]["done"]
    whole = gateway.client.post("/api/chat", json={**body, "stream": False})
    assert whole.headers["content-type"] == "application/json"
    assert (
        "".join(line["message"]["content"] for line in lines) == whole.json()["message"]["content"]
    )


def test_generates(client: ollama.Client) -> None:
    told = client.generate("demo", "What can you do?", options=GREEDY)
    assert told.response == client.chat("demo", QUESTION, options=GREEDY).message.content
    raw = client.generate("demo", "Bulkhead is", raw=True, options={**GREEDY, "stop": ["."]})
    assert raw.response
    assert "." not in raw.response
    system = client.generate("demo", "What can you do?", system="Be brief.", options=GREEDY)
    assert system.prompt_eval_count > told.prompt_eval_count
    parts = list(client.generate("demo", "What can you do?", options=GREEDY, stream=True))
    assert "".join(part.response for part in parts) == told.response


def test_the_same_seed_gives_the_same_text(client: ollama.Client) -> None:
    options = {"seed": 7, "temperature": 1.5, "top_k": 40.0, "top_p": 0.9, "num_predict": 20}
    texts = {client.generate("demo", "A story", options=options).response for _ in range(2)}
    assert len(texts) == 1


def test_formats(client: ollama.Client) -> None:
    answer = client.chat("demo", QUESTION, format=SCHEMA)
    assert json.loads(answer.message.content)["city"] in ("Rome", "Oslo")
    options = {**GREEDY, "num_predict": -1}
    assert isinstance(
        json.loads(
            client.generate("demo", "A city as JSON", format="json", options=options).response
        ),
        dict,
    )


def test_thinks(client: ollama.Client) -> None:
    options = {"temperature": 0}
    answer = client.chat("demo", QUESTION, think=True, options=options).message
    assert answer.thinking
    parts = list(client.chat("demo", QUESTION, think=True, options=options, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == answer.thinking
    assert "".join(response.message.content for response in parts) == answer.content
    assert client.chat("demo", QUESTION, think=False, options=options).message.thinking is None


def test_calls_tools(client: ollama.Client, gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "What's the weather in Rome? Use the tool."}]
    answer = client.chat("demo", messages, tools=[TOOL], options={"temperature": 0})
    called: dict[str, Any] = {"role": "assistant", "content": ""}
    function = {"name": "get_weather", "arguments": {"city": "Rome"}}
    called["tool_calls"] = [{"function": function}]
    result = {"role": "tool", "tool_name": "get_weather", "content": "Rain"}
    asked = [*messages, called, result]
    after = client.chat("demo", asked, tools=[TOOL], options=GREEDY)
    assert after.prompt_eval_count > answer.prompt_eval_count
    bad = [*messages, {**called, "tool_calls": [{"function": {**function, "arguments": []}}]}]
    refused = gateway.client.post("/api/chat", json={"model": "demo", "messages": bad})
    assert refused.status_code == 400
    assert "arguments: send a JSON object" in refused.json()["error"]


def test_log_probabilities(client: ollama.Client) -> None:
    answer = client.generate(
        "demo", "What can you do?", logprobs=True, top_logprobs=2, options={"num_predict": 3}
    )
    assert [len(logprob.top_logprobs) for logprob in answer.logprobs] == [2, 2, 2]


def test_looks_at_models(client: ollama.Client) -> None:
    client.generate("demo", "Hello", options=GREEDY)
    (listed,) = client.list().models
    assert (listed.model, listed.details.family) == ("demo:latest", "qwen3")
    shown = client.show("demo")
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities)
    assert shown.modelinfo["qwen3.context_length"] == 4096
    assert shown.modelinfo["general.basename"] == "demo"
    assert shown.template
    assert shown.parameters == "num_ctx 4096"
    assert shown.modelfile.endswith("\nFROM demo:latest\n")
    (running,) = client.ps().models
    assert running.digest == listed.digest
    assert running.context_length == 4096
    assert running.expires_at.year == 9999
    assert running.size > 1_000_000


def test_embeds(client: ollama.Client) -> None:
    one = client.embed("demo", "Bulkhead").embeddings[0]
    both = client.embed("demo:latest", ["Bulkhead", "A model server"]).embeddings
    assert len(both) == 2
    assert both[0] == pytest.approx(one, abs=1e-4)
    assert client.embeddings("demo", "Bulkhead").embedding == pytest.approx(one, abs=1e-4)


def test_loads_and_unloads(client: ollama.Client, gateway: Gateway) -> None:
    assert client.generate("demo").done_reason == "load"
    assert gateway.model()["state"] == "ready"
    client.generate("demo", "Hello", options=GREEDY, keep_alive="10m")
    (running,) = client.ps().models
    assert running.expires_at.year < 9999
    assert client.chat("demo", keep_alive=0).done_reason == "unload"
    eventually(lambda: gateway.model()["state"] == "unloaded")
    # There is nothing to unload, and nothing is loaded for it.
    assert client.chat("demo", keep_alive=0).done_reason == "unload"
    assert gateway.model()["state"] == "unloaded"
    assert client.ps().models == []


def test_errors_name_the_wrong_field(client: ollama.Client, gateway: Gateway) -> None:
    with pytest.raises(ollama.ResponseError, match="no model 'none'") as caught:
        client.chat("none", QUESTION)
    assert caught.value.status_code == 404
    for options, said in (
        ({"temperature": 9}, "options.temperature"),
        ({"mirostat": 1}, "mirostat"),
    ):
        with pytest.raises(ollama.ResponseError, match=said):
            client.chat("demo", QUESTION, options=options)
    with pytest.raises(ollama.ResponseError, match="pictures = true"):
        client.generate("demo", "Look", images=[b"\x89PNG\r\n\x1a\n"])
    answer = gateway.client.post("/api/generate", json={"model": "demo", "context": [1]})
    assert answer.json() == {
        "error": "context is not supported: leave it out, or send the messages to /api/chat."
    }


def test_pictures_of_earlier_messages_are_told(gateway: Gateway) -> None:
    shown = {"role": "user", "content": "?", "images": [base64.b64encode(png(RED)).decode()]}
    asked = {"model": "demo", "stream": False, "options": GREEDY}
    told = gateway.client.post("/api/chat", json={**asked, "messages": [shown, *QUESTION]})
    assert told.status_code == 200
    assert told.headers["x-bulkhead-left-out"] == "image"
    refused = gateway.client.post("/api/chat", json={**asked, "messages": [*QUESTION, shown]})
    assert refused.status_code == 400
    assert "messages[1].images[0]" in refused.json()["error"]


def test_a_model_that_is_here_counts_as_pulled(client: ollama.Client) -> None:
    for name in ("demo", "demo:latest"):
        assert client.pull(name).status == "success"
        assert [response.status for response in client.pull(name, stream=True)] == ["success"]


def test_it_is_what_codex_asks_for(gateway: Gateway) -> None:
    """Ollama of 0.13.4 at least; it then sends the listed name to OpenAI's Responses."""
    version = gateway.client.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)
    (listed,) = gateway.client.get("/api/tags").json()["models"]
    body = {"model": listed["name"], "input": "Hi", "max_output_tokens": 2}
    answer = gateway.client.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["model"]) == (200, "demo")


def test_files_are_not_its_business(client: ollama.Client) -> None:
    asked = [
        lambda: client.pull("llama3.2"),
        lambda: client.create("mine", from_="demo"),
        lambda: client.copy("demo", "mine"),
        lambda: client.delete("demo"),
    ]
    for ask in asked:
        with pytest.raises(ollama.ResponseError, match="bulkhead pull") as caught:
            ask()
        assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="not uploaded"):
        client.push("demo")


@pytest.mark.slow
def test_a_worker_that_dies_in_mid_answer(client: ollama.Client, gateway: Gateway) -> None:
    options = {"temperature": 0, "num_predict": 150}
    messages = [{"role": "user", "content": "What is Bulkhead?"}]
    whole = client.chat("demo", messages, think=True, options=options)
    text, thinking, killed = "", "", False
    for part in client.chat("demo", messages, think=True, options=options, stream=True):
        text += part.message.content
        thinking += part.message.thinking or ""
        if not killed and (text or thinking):
            killed = True
            os.kill(gateway.worker_pid(), signal.SIGKILL)
    assert killed
    assert (text, thinking) == (whole.message.content, whole.message.thinking or "")


def test_more_than_the_context_may_be_asked_for(client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 32_000}
    assert client.chat("demo", QUESTION, options=options).done_reason == "stop"


@pytest.mark.slow
def test_an_error_in_mid_stream_is_a_line(gateway: Gateway, client: ollama.Client) -> None:
    body = {"model": "demo", "prompt": "Bulkhead", "raw": True, "options": {"num_predict": 3000}}
    gateway.load()
    with (
        httpx.Client(base_url=gateway.url, timeout=120) as http,
        http.stream("POST", "/api/generate", json=body) as answer,
    ):
        lines = answer.iter_lines()
        assert "error" not in json.loads(next(lines))
        gateway.order("unload", hold=True, force=True)
        last = [json.loads(line) for line in lines][-1]
    assert "held" in last["error"]
    gateway.load()
