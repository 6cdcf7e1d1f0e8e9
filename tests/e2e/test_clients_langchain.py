"""langchain-openai, unmodified: the same answers, and its own exception for a full context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

from tests.support.gateway import Gateway

if TYPE_CHECKING:
    from langchain_openai import ChatOpenAI

pytestmark = pytest.mark.slow

QUESTION = "What is Bulkhead?"


def _chat(gateway: Gateway, **fields: object) -> ChatOpenAI:
    # At the top of the file this import would cost every process of a run two seconds.
    from langchain_openai import ChatOpenAI

    settings = {"model": "demo", "temperature": 0, "max_retries": 2, **fields}
    return ChatOpenAI(base_url=f"{gateway.url}/v1", api_key="none", **settings)


@pytest.fixture(scope="module")
def whole(gateway: Gateway) -> str:
    return gateway.say(QUESTION, temperature=0)


def test_a_whole_answer(gateway: Gateway, whole: str) -> None:
    answer = _chat(gateway).invoke(QUESTION)
    assert answer.content == whole
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.usage_metadata["output_tokens"] > 1


def test_a_streamed_answer(gateway: Gateway, whole: str) -> None:
    pieces = list(_chat(gateway, stream_usage=True).stream(QUESTION))
    assert len(pieces) > 1
    assert "".join(str(piece.content) for piece in pieces) == whole
    counted = [chunk.usage_metadata for chunk in pieces if chunk.usage_metadata]
    assert sum(item["output_tokens"] for item in counted) > 1


async def test_an_asynchronous_answer(gateway: Gateway, whole: str) -> None:
    assert (await _chat(gateway).ainvoke(QUESTION)).content == whole
    assert (
        "".join([str(chunk.content) async for chunk in _chat(gateway).astream(QUESTION)]) == whole
    )


def test_a_conversation(gateway: Gateway) -> None:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

    messages = [
        SystemMessage("Be brief."),
        HumanMessage(QUESTION),
        AIMessage("A model server."),
        HumanMessage(QUESTION),
    ]
    assert _chat(gateway, max_tokens=8).invoke(messages).usage_metadata["output_tokens"] == 8


def test_stop_sequences(gateway: Gateway, whole: str) -> None:
    stop = whole[10:20]
    assert _chat(gateway).invoke(QUESTION, stop=[stop]).content == whole[: whole.index(stop)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion(gateway: Gateway, *, stream: bool) -> None:
    from langchain_openai import OpenAI

    model = OpenAI(
        model="demo", base_url=f"{gateway.url}/v1", api_key="none", temperature=0, max_tokens=8
    )
    prompt = "Bulkhead is"
    text = "".join(model.stream(prompt)) if stream else model.invoke(prompt)
    assert text.startswith(" a server")


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_context_is_its_own_exception(gateway: Gateway, *, stream: bool) -> None:
    from langchain_core.exceptions import ContextOverflowError

    model = _chat(gateway)
    ask = model.stream if stream else model.invoke
    with pytest.raises(ContextOverflowError):
        list(ask("a server " * 5000))


def test_unsupported_options_are_refused(gateway: Gateway) -> None:
    with pytest.raises(openai.BadRequestError, match="modalities is not supported"):
        _chat(gateway).bind(modalities=["audio"]).invoke(QUESTION)
    with pytest.raises(openai.NotFoundError):
        _chat(gateway, model="gpt-9").invoke(QUESTION)
