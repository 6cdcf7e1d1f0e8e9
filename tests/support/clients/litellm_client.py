"""LiteLLM, against the gateway whose address is its argument; prints JSON.

It runs in an environment of its own: it wants another version of OpenAI's client.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

URL = sys.argv[1]
MESSAGES = [{"role": "user", "content": "What can you do?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
# The providers by which it may be reached.
PROVIDERS = {
    "openai/demo": f"{URL}/v1",
    "anthropic/demo": URL,
    "ollama_chat/demo": URL,
    "ollama/demo": URL,
}


def chats(model: str, base: str) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": model,
        "api_base": base,
        "api_key": "none",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 30,
        "num_retries": 0,
    }
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True))
    asked["max_tokens"] = 300
    called = litellm.completion(**asked, tools=[TOOL], tool_choice="required")
    return {
        "whole": whole.choices[0].message.content,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "tokens": whole.usage.completion_tokens,
        "finish_reason": whole.choices[0].finish_reason,
        "calls": [
            tool_call.function.name for tool_call in called.choices[0].message.tool_calls or ()
        ],
        "errors": [error(asked, **change) for change in ERRORS],
    }


ERRORS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "a " * 20_000}]},
    {"top_p": 7},
]


def error(asked: dict[str, Any], **change: Any) -> str:
    try:
        litellm.completion(**{**asked, **change})
    except Exception as caught:  # What it is called is what the test is about.
        return type(caught).__name__
    return ""


def main() -> None:
    found: dict[str, Any] = {name: chats(name, base) for name, base in PROVIDERS.items()}
    at = {"api_base": f"{URL}/v1", "api_key": "none"}
    text = litellm.text_completion(
        model="text-completion-openai/demo", prompt="Bulkhead is", max_tokens=5, **at
    )
    found["text"] = text.choices[0].text
    vectors = litellm.embedding(model="openai/demo", input=["one", "two"], **at)
    found["vectors"] = len(vectors.data)
    vectors = litellm.embedding(model="ollama/demo", input=["one", "two"], api_base=URL)
    found["ollama_vectors"] = len(vectors.data)
    print(json.dumps(found))


main()
