"""Requests as they are remembered, made for tests of why one began late."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

from gateway.requests.trace import MARK_TOKENS, Trace
from gateway.requests.use import Timing
from gateway.why.record import RequestRecord
from gateway.why.sections import PromptSection, Sketch, sketch
from protocol.answers import Usage
from protocol.life import PromptCaching
from protocol.requests import ChatMessage, ChatPrompt, Generate, Sampling, TextPrompt, Tools

_COUNT = itertools.count()
CACHED = PromptCaching("root", on_disk=True)


def text_section(text: str) -> PromptSection:
    (section,) = sketched(TextPrompt(text)).sections
    return section


def sketched(prompt: ChatPrompt | TextPrompt, tools: str = "", **fields: Any) -> Sketch:
    task = Generate(
        request_id="r",
        prompt=prompt,
        sampling=Sampling(seed=0),
        tools=Tools(definitions=tools) if tools else None,
        **fields,
    )
    return sketch(task, {})


def chat(*texts: str, system: str = "", arguments: str = "", tools: str = "") -> Sketch:
    """A conversation in which user and assistant take turns."""
    roles = itertools.cycle(("user", "assistant"))
    messages = [ChatMessage("system", system)] if system else []
    messages += [ChatMessage(role, text) for role, text in zip(roles, texts, strict=False)]
    return sketched(ChatPrompt(tuple(messages), arguments), tools)


def asked(
    drawn: Sketch,
    marks: tuple[int, ...] = (1, 2, 3),
    cached_tokens: int | None = 0,
    *,
    at: float = 0.0,
    first_token_s: float | None = 1.0,
    stored_tokens: int = 0,
    completion_tokens: int = 1,
    reasoning_tokens: int = 0,
    fingerprint: str = "f",
    prompts: PromptCaching = CACHED,
    incarnation: int = 1,
    **fields: Any,
) -> RequestRecord:
    """A request whose prompt has these `marks`, and half as many tokens as a mark beyond them."""
    timing = Timing(0.0, queue_s=0.0, first_token_s=first_token_s)
    trace = Trace(timing)
    trace.sent(fingerprint, prompts, incarnation)
    trace.marks = array("q", marks)
    trace.prompt_tokens = MARK_TOKENS * len(marks) + MARK_TOKENS // 2
    if cached_tokens is not None:
        trace.usage = Usage(
            trace.prompt_tokens,
            completion_tokens,
            cached_tokens,
            reasoning_tokens,
            stored_tokens=stored_tokens,
        )
    named = {
        "id": f"r{next(_COUNT)}",
        "answer": "",
        "model": "m",
        "owner": "",
        "key": None,
        "salt": "",
        **fields,
    }
    return RequestRecord(at=at, sketch=drawn, trace=trace, **named)
