"""Unmodified clients that can't be in this environment: npm's, LiteLLM, and the JDK's. `make test`
installs the first two beside it.
"""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.clients.running import CLIENTS, ENVIRONMENT, NODE, run
from tests.support.gateway import Gateway

NPM = ENVIRONMENT / "npm" / "node_modules"
LITELLM = ENVIRONMENT / "litellm" / "bin" / "python"
PROVIDERS = ("openai/demo", "anthropic/demo", "ollama_chat/demo", "ollama/demo")
JAVA = shutil.which("java")

needs_npm = pytest.mark.skipif(
    NODE is None or not NPM.exists(), reason="there is no node, or make test found no npm"
)
needs_litellm = pytest.mark.skipif(not LITELLM.exists(), reason="make test installs litellm")


@needs_npm
def test_npm_openai(gateway: Gateway) -> None:
    found = run(str(NODE), CLIENTS / "openai.cjs", gateway.url, npm=NPM)
    assert found["models"] == ["demo"]
    assert found["whole"].startswith("You can ask me")
    assert found["streamed"] == found["whole"]
    assert found["call"]["name"] == "get_weather"
    assert json.loads(found["call"]["arguments"])["city"] in ("Rome", "Oslo")
    assert found["vectors"] == 2
    assert found["error"] == {"status": 404, "code": "model_not_found"}


@pytest.mark.slow
@needs_npm
def test_npm_anthropic(gateway: Gateway) -> None:
    found = run(str(NODE), CLIENTS / "anthropic.cjs", gateway.url, npm=NPM)
    assert found["whole"] == {"stop_reason": "max_tokens", "kinds": ["text"]}
    assert found["streamed"] == 30
    assert (found["events"][0], found["events"][-1]) == ("message_start", "message_stop")
    assert found["counted"] > 5
    assert found["models"] == ["demo"]
    assert found["error"] == {"status": 404, "type": "not_found_error"}


@pytest.mark.slow
@pytest.mark.skipif(JAVA is None, reason="there is no java")
def test_jdk(gateway: Gateway) -> None:
    found = run(str(JAVA), CLIENTS / "Jdk.java", gateway.url)
    text = found["whole"]["choices"][0]["message"]["content"]
    assert found["version"] == "HTTP_1_1"
    assert text.startswith("You can ask me")
    assert found["again"]["choices"][0]["message"]["content"] == text
    deltas = [item["choices"][0]["delta"] for item in found["streamed"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    assert len(found["vectors"]["data"]) == 2
    assert (found["status"], found["error"]["error"]["code"]) == (404, "model_not_found")


@pytest.mark.slow
@needs_litellm
def test_litellm(gateway: Gateway) -> None:
    found = run(LITELLM, CLIENTS / "litellm_client.py", gateway.url)
    texts = {found[name]["whole"] for name in PROVIDERS}
    assert len(texts) == 1, texts
    for provider in PROVIDERS:
        answer = found[provider]
        assert answer["streamed"] == answer["whole"], provider
        assert answer["tokens"] == 30, provider
        # It tells neither of Ollama's answers and errors apart, nor can their API demand a call.
        if not provider.startswith("ollama"):
            assert answer["finish_reason"] == "length", provider
            assert answer["calls"] == ["get_weather"], provider
            assert answer["errors"] == ["ContextWindowExceededError", "BadRequestError"], provider
    assert found["text"]
    assert (found["vectors"], found["ollama_vectors"]) == (2, 2)
