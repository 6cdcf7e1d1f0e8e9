"""Requests one at a time, as a conversation or an agent sends them, and random text for them."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

from tokenizers import Tokenizer

from bench.load import Address
from bench.results import FailedError

_PATIENCE_S: Final = 600.0


class Turn(NamedTuple):
    """Seconds until the first text and until the answer's end, and the answer."""

    first_s: float
    whole_s: float
    answer: str


class RandomText:
    """Makes text of random words, by its number of tokens."""

    def __init__(self, model: Path, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._random = random.Random(seed)
        source = Path(__file__).parent.parent / "README.md"
        self._words = source.read_text("utf-8").split()

    def draw(self, tokens: int) -> str:
        text = " ".join(self._random.choices(self._words, k=tokens))
        offsets = self._tokenizer.encode(text).offsets
        return text[: offsets[min(tokens, len(offsets)) - 1][1]]


def ask(address: Address, model: str, prompt: str, tokens: int, temperature: float = 0.0) -> Turn:
    """Stream an answer.

    Raises:
        FailedError: the stream ended with an error.
    """
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": temperature}
    return _stream(address, "/v1/completions", body)


def chat(address: Address, model: str, messages: list[dict[str, Any]], tokens: int) -> Turn:
    """Stream the answer to a conversation, greedily.

    Raises:
        FailedError: the stream ended with an error.
    """
    body = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0.0}
    return _stream(address, "/v1/chat/completions", body)


def _stream(address: Address, path: str, body: dict[str, Any]) -> Turn:
    request = _post(address, path, {**body, "stream": True})
    began = time.perf_counter()
    first_s = 0.0
    text = ""
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            frame = json.loads(line[6:])
            if "error" in frame:
                raise FailedError(str(frame["error"]))
            for choice in frame["choices"]:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            if text:
                first_s = first_s or time.perf_counter() - began
    return Turn(first_s, time.perf_counter() - began, text)


def order(address: Address, model: str, verb: str) -> None:
    """Load or unload a model, and wait until that is done."""
    request = _post(address, f"/admin/v1/models/{model}/{verb}", {"wait": True})
    urllib.request.urlopen(request, timeout=_PATIENCE_S).read()


def _post(address: Address, path: str, body: dict[str, Any]) -> urllib.request.Request:
    url = f"http://{address[0]}:{address[1]}{path}"
    return urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
