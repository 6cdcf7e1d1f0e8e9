"""The usage in answers of other servers."""

from __future__ import annotations

import pytest

from gateway.http.passing.usage import OllamaUsageReader, UsageReader
from protocol.answers import Usage


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_usage_is_found_in_pieces_of_any_size(size: int) -> None:
    texts = [
        b'data: {"text": "\\"usage\\": {\\"prompt_tokens\\": 9}", "usage": null}\n\n',
        b'data: {"usage": {"prompt_tokens": 3, "completion_tokens": 4, "d": {"c": 1}}}\n\n',
        b'data: {"usage":{"input_tokens":2,"output_tokens":5}}\n\ndata: [DONE]\n\n',
    ]
    reader = UsageReader()
    stream = b"".join(texts)
    for begin in range(0, len(stream), size):
        reader.read(stream[begin : begin + size])
    assert reader.spent == Usage(3, 5)


@pytest.mark.parametrize(
    "count", [b"-1", b"1e3", b"4294967297", b"9" * 4300, b'"3"', b"[]", b"true"]
)
def test_count_that_is_no_number_of_tokens_is_left_out(count: bytes) -> None:
    reader = UsageReader()
    reader.read(b'{"usage": {"prompt_tokens": 1, "completion_tokens": %b}}' % count)
    assert reader.spent is None
    ollama = OllamaUsageReader()
    ollama.read(b'{"done": true, "eval_count": %b}\n' % count)
    assert ollama.spent is None


def test_stream_without_usage_has_one_token_for_each_delta() -> None:
    reader = UsageReader(prompt_bytes=400)
    reader.count_deltas(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n')
    assert reader.spent is None
    for _ in range(3):
        reader.count_deltas(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
    reader.count_deltas(b'data: {"type": "content_block_delta", "delta": {"text": "x"}}\n\n')
    assert reader.spent == Usage(100, 4)
    reader.read(b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 0}}\n\n')
    assert reader.spent == Usage(7, 4), "the larger of both"
    reader.read(b'data: {"usage": {"prompt_tokens": 7, "completion_tokens": 9}}\n\n')
    assert reader.spent == Usage(7, 9)


@pytest.mark.parametrize("size", [1, 7, 30, 1000])
def test_ollama_usage_is_found_in_pieces_of_any_size(size: int) -> None:
    chunk = b'{"message":{"content":"\\"eval_count\\":9,"},"done":false}\n'
    last = b'{"done":true,"prompt_eval_count":12,"prompt_eval_duration":5,"eval_count":345}\n'
    text = chunk * 3 + last
    reader = OllamaUsageReader()
    for begin in range(0, len(text), size):
        reader.read(text[begin : begin + size])
    assert reader.spent == Usage(12, 345)
