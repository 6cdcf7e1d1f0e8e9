"""Pictures through the official client, by a small random model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.support.gateway import Gateway
from tests.support.pictures import GREEN, RED, bomb, data_url, png

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    from tests.support.picture_model import picture_model

    folder = picture_model(tmp_path_factory.mktemp("models") / "eyes")
    pictures = tmp_path_factory.mktemp("pictures")
    (pictures / "green.png").write_bytes(png(GREEN))
    config = f"""
[gateway]
image_folders = ["{pictures}"]
remote_images = true
[models.eyes]
path = "{folder}"
pictures = true
preload = true
"""
    gateway = Gateway(config=config, models=())
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _messages(*urls: str) -> list[dict[str, object]]:
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "Who is that?"}, *pictures]}]


def _answer(client: openai.OpenAI, *urls: str) -> tuple[str, int]:
    """Its text, and the tokens of the prompt."""
    answer = client.chat.completions.create(
        model="eyes", messages=_messages(*urls), temperature=0, max_tokens=40
    )
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.prompt_tokens


@pytest.mark.slow
def test_tells_pictures_apart(client: openai.OpenAI, gateway: Gateway) -> None:
    red, tokens = _answer(client, data_url(png(RED)))
    green, _ = _answer(client, data_url(png(GREEN)))
    none, tokens_alone = _answer(client)
    assert len({red, green, none}) == 3
    # Twelve of the picture, and two around it.
    assert tokens == tokens_alone + 14
    assert _answer(client, data_url(png(RED))) == (red, tokens)
    folder = Path(gateway.config_path.read_text().split('"')[1])
    assert _answer(client, f"{folder}/green.png")[0] == green
    assert _answer(client, f"file://{folder}/green.png")[0] == green


def test_in_messages(client: openai.OpenAI, gateway: Gateway) -> None:
    """Anthropic's, where a picture may also be in what a tool gave."""
    import anthropic

    said = {"type": "text", "text": "Who is that?"}
    data = data_url(png(RED)).partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    image = {"type": "image", "source": source}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [image]}
    red, tokens = _answer(client, data_url(png(RED)))
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as other:
        asked = {"model": "eyes", "max_tokens": 40, "extra_body": {"temperature": 0}}
        shown = [{"role": "user", "content": [said, image]}]
        answer = other.messages.create(**asked, messages=shown)
        assert answer.content[0].text == red
        assert other.messages.count_tokens(model="eyes", messages=shown).input_tokens == tokens
        given = [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, said]},
        ]
        assert other.messages.create(**asked, messages=given).content
        source["data"] = "@"
        with pytest.raises(anthropic.BadRequestError, match=r"messages.0.content.1: .*base64"):
            other.messages.create(**asked, messages=shown)


def test_in_ollamas_messages(client: openai.OpenAI, gateway: Gateway) -> None:
    import ollama

    messages = [{"role": "user", "content": "Who is that?", "images": [png(RED)]}]
    options = {"temperature": 0, "num_predict": 40}
    other = ollama.Client(host=gateway.url)
    answer = other.chat("eyes", messages, options=options)
    told = other.generate("eyes", "Who is that?", images=[png(RED)], options=options)
    assert told.response == answer.message.content
    nothing = other.generate("eyes", "Who is that?", options=options)
    assert told.prompt_eval_count == nothing.prompt_eval_count + 14
    assert "vision" in other.show("eyes").capabilities


def test_models_say_so(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.model_dump()["input_modalities"] == ["text", "image"]


@pytest.mark.slow
def test_survives_the_worker(client: openai.OpenAI, gateway: Gateway) -> None:
    asked = {
        "model": "eyes",
        "messages": _messages(data_url(png(RED)), data_url(png(GREEN))),
        "temperature": 0,
        "max_tokens": 600,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**asked).choices[0].message.content
    found = ""
    killed = False
    for chunk in client.chat.completions.create(stream=True, **asked):
        found += "".join(choice.delta.content or "" for choice in chunk.choices)
        if found and not killed:
            os.kill(gateway.worker_pid("eyes"), signal.SIGKILL)
            killed = True
    assert found == whole
    assert gateway.events("resume")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (data_url(bomb(10_000, 10_000)), "10000 x 10000 pixels"),
        (data_url(bomb(65_000, 65_000)), "too many pixels"),
        (data_url(png(RED)[:-30]), "can't be decoded"),
        ("http://127.0.0.1:1/a.png", "not an address of the internet"),
        ("http://localhost/a.png", "not an address of the internet"),
        ("http://a..b/a.png", "no name of a machine"),
        (f"http://{'a' * 64}/a.png", "no name of a machine"),
        ("http://xn--/a.png", "no address"),
        ("/etc/hosts", "no such file in gateway.image_folders"),
    ],
    ids=[
        "100 megapixels",
        "bomb",
        "cut off",
        "loopback",
        "localhost",
        "dots",
        "label",
        "punycode",
        "outside",
    ],
)
def test_refused(client: openai.OpenAI, gateway: Gateway, url: str, reason: str) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        _answer(client, data_url(png(RED)), url)
    assert caught.value.param == "messages[0].content[2].image_url"
    assert httpx.get(f"{gateway.url}/health").json()["faults"] == []
