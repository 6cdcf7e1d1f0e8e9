"""Answers of text alone."""

from __future__ import annotations

from typing import Any

from protocol.answers import AnswerPart, Text
from protocol.requests import Generate, Sampling, TextPrompt
from worker.text.format import AnswerFormat
from worker.text.stream import AnswerStream, answer_stream


def text_stream(
    tokenizer: Any,
    prompt_ids: list[int],
    stop: tuple[str, ...] = (),
    *,
    include_stop: bool = False,
) -> AnswerStream:
    """An answer's text, told apart from nothing."""
    generate = Generate(
        request_id="r",
        prompt=TextPrompt(""),
        sampling=Sampling(seed=0),
        stop=stop,
        include_stop=include_stop,
    )
    return answer_stream(generate, prompt_ids, tokenizer, AnswerFormat())


def text_of(parts: list[AnswerPart]) -> str:
    """Raises AssertionError if there is anything else."""
    assert all(isinstance(part, Text) for part in parts)
    return "".join(text.text for text in parts if isinstance(text, Text))
