"""Guesses that a scripted worker tells of, from its deltas to clients and operators."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.cli.terminal import bulkhead
from tests.support.browser import Browser, missing
from tests.support.faults import interpreter
from tests.support.gateway import Gateway

# The answer is the prediction. If this is "dies", the worker dies within the answer.
GUESSER = """
socket = connect()
socket.send(encode(hello()))
decode_from_gateway(socket.recv())
socket.send(encode(ready()))
while True:
    if not socket.poll(500):
        socket.send(encode(heartbeat()))
        continue
    match decode_from_gateway(socket.recv()):
        case Generate(request_id=name, prediction=text, delivered=delivered):
            socket.send(encode(Rendered(request_id=name, token_ids=b"\\0" * 28, last=True)))
            delta = Delta(name, (1, 1, 1), (Text(text),), guesses=Guesses(2, 1))
            if not delivered:
                socket.send(encode(Output(step=1, deltas=(delta,))))
                if text == "dies":
                    sys.exit(7)
            delta = Delta(name, (1,), (), "stop", Usage(7, 4), guesses=Guesses(1, 0))
            socket.send(encode(Output(step=2, deltas=(delta,))))
        case Stop():
            sys.exit(0)
"""


@pytest.fixture
def gateway(tmp_path: Any) -> Iterator[Gateway]:
    python = interpreter(tmp_path / "guesser", GUESSER)
    config = f'[models.demo]\npath = "demo"\n[models.guesser]\npath = "demo"\npython = "{python}"\n'
    running = Gateway(models=(), config=config)
    yield running
    assert running.stop() == 0, running.log


def _ask(gateway: Gateway, content: object, **fields: Any) -> httpx.Response:
    body = {
        "model": "guesser",
        "messages": [{"role": "user", "content": "Again."}],
        "prediction": {"type": "content", "content": content},
        **fields,
    }
    return gateway.client.post("/v1/chat/completions", json=body).raise_for_status()


def _samples(gateway: Gateway) -> list[str]:
    text = gateway.client.get("/metrics").text
    return [line for line in text.splitlines() if line.startswith("bulkhead_guesses_total{")]


def _headings(gateway: Gateway) -> list[str]:
    lines = bulkhead("status", url=gateway.url).stdout.splitlines()
    return next(line for line in lines if line.startswith("model ")).split()


def test_clients_and_operators_are_told(gateway: Gateway) -> None:
    assert _samples(gateway) == []
    assert "guesses" not in _headings(gateway)
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model="guesser",
        messages=[{"role": "user", "content": "Again."}],
        prediction={"type": "content", "content": "Hello"},
        n=2,
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello", "Hello"]
    details = answer.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (6, 2)
    assert answer.usage.completion_tokens == 8

    told = gateway.model("guesser")["guesses"]
    assert told == {"accepted": 6, "rejected": 2, "accept_rate": 0.75}
    assert gateway.model("demo")["guesses"]["accept_rate"] is None
    assert sorted(_samples(gateway)) == [
        'bulkhead_guesses_total{model_name="guesser",result="accepted"} 6.0',
        'bulkhead_guesses_total{model_name="guesser",result="rejected"} 2.0',
    ]
    assert _headings(gateway)[-1] == "guesses"
    shown = bulkhead("status", url=gateway.url).stdout.splitlines()
    # The first rows with these names are those of the table of models.
    for name, share in (("demo", "-"), ("guesser", "75%")):
        assert next(text for text in shown if text.startswith(name)).split()[-1] == share


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_outlives_its_worker_has_the_guesses_of_both(
    gateway: Gateway, *, stream: bool
) -> None:
    fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = _ask(gateway, [{"type": "text", "text": "dies"}], **fields)
    told = answer.text.split("\n\n")[-3].removeprefix("data: ") if stream else answer.text
    details = json.loads(told)["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == 3
    assert details["rejected_prediction_tokens"] == 1
    assert gateway.model("guesser")["restarts"] == 1


@pytest.mark.slow
@pytest.mark.outside_our_hands("Chromium and its driver are processes of others")
def test_the_page_shows_the_share_once_there_is_one(gateway: Gateway) -> None:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    gateway.load("guesser")
    with Browser() as page:
        page.open(f"{gateway.url}/ui")
        page.sees("[data-model=guesser] .facts", "Restarts")
        assert "Right guesses" not in page.text("[data-model=guesser] .facts")
        _ask(gateway, "Hello")
        page.sees("[data-model=guesser] .facts", "Right guesses")
        page.sees("[data-model=guesser] .facts", "75%")
