"""How often the official client asks again: a failure that can't heal costs one request."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.support.faults import held_load, sitecustomize
from tests.support.gateway import Gateway

QUESTION = [{"role": "user", "content": "What is Bulkhead?"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Its model never finishes loading."""
    folder = tmp_path_factory.mktemp("held")
    flag = folder / "flag"
    flag.touch()
    running = Gateway(environment=sitecustomize(folder / "site", held_load(flag)))
    yield running
    flag.unlink()
    assert running.stop() == 0, running.log


@pytest.fixture
def answers() -> list[httpx.Response]:
    return []


@pytest.fixture
def client(gateway: Gateway, answers: list[httpx.Response]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=2) as client:
        # The client's own list of hooks: it brings its HTTP library along.
        client._client.event_hooks["response"].append(answers.append)
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_is_not_multiplied(
    client: openai.OpenAI, answers: list[httpx.Response], *, stream: bool
) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model="demo", messages=QUESTION, extra_headers={"X-Deadline-S": "0.3"}, stream=stream
        )
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    assert len(answers) == 1
    assert answers[0].headers["x-should-retry"] == "false"
    assert "retry-after" not in answers[0].headers


def test_bad_requests_are_not_repeated(
    client: openai.OpenAI, answers: list[httpx.Response]
) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="demo", messages=QUESTION, n=0)
    assert len(answers) == 1
