from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.answers import (
    Alternative,
    Costs,
    Delta,
    Embedded,
    Guesses,
    Logprobs,
    Output,
    OutputInvalid,
    PromptLogprobs,
    PromptToken,
    Reasoning,
    Rendered,
    RequestFailed,
    Text,
    TokenLogprob,
    ToolCall,
    Usage,
)
from protocol.life import (
    Bound,
    CacheProven,
    CacheQuarantined,
    ClearPromptCache,
    Device,
    Drain,
    Heartbeat,
    Hello,
    Limit,
    Load,
    LoadFailed,
    LoadProgress,
    MlxMemory,
    Move,
    Moved,
    Need,
    PromptCacheCleared,
    PromptCacheDisk,
    RankLost,
    Ready,
    RunCommand,
    Settle,
    Stay,
    Stop,
)
from protocol.message_base import (
    LARGEST_TOKEN_ID,
    Message,
    pack,
    unpack,
)
from protocol.messages import (
    MAX_GATEWAY_FRAME_BYTES,
    MAX_WORKER_FRAME_BYTES,
    PROTOCOL_VERSION,
    GatewayMessage,
    ProtocolError,
    VersionError,
    WorkerMessage,
    decode_from_gateway,
    decode_from_worker,
    encode,
)
from protocol.requests import (
    Cancel,
    ChatMessage,
    ChatPrompt,
    Embed,
    Generate,
    Picture,
    Sampling,
    SamplingDefaults,
    TextPrompt,
    TokenPrompt,
)

_LONGEST_SENTENCE = 1000

# What msgpack can carry: 64-bit integers, and text without lone surrogates.
_integers = st.integers(-(1 << 63), (1 << 64) - 1)
_counts = st.integers(0, (1 << 64) - 1)
_floats = st.floats(allow_nan=False)
_token_ids = st.integers(0, LARGEST_TOKEN_ID)
_packed = st.lists(_token_ids, max_size=5).map(pack)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def _optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def _tuples(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(strategy, max_size=5).map(tuple)


_memories = st.builds(
    MlxMemory, active_bytes=_integers, cache_bytes=_integers, peak_bytes=_integers
)
_devices = st.builds(
    Device,
    name=_texts,
    architecture=_texts,
    recommended_working_set_bytes=_optional(_integers),
    memory_bytes=_optional(_integers),
)
_pictures = st.builds(Picture, data=st.binary(max_size=20), at=_integers, name=_texts)
_messages = st.builds(ChatMessage, role=_texts, content=_texts, pictures=_tuples(_pictures))
_prompts = (
    st.builds(ChatPrompt, messages=_tuples(_messages))
    | st.builds(TextPrompt, text=_texts)
    | st.builds(TokenPrompt, token_ids=_packed)
)
_samplings = st.builds(
    Sampling,
    seed=_integers,
    temperature=_optional(_floats),
    top_p=_optional(_floats),
    top_k=_optional(_integers),
    min_p=_optional(_floats),
    repetition_penalty=_optional(_floats),
    repetition_context_tokens=_integers,
)
_alternatives = _tuples(st.builds(Alternative, text=st.binary(max_size=20), logprob=_floats))
_logprobs = st.builds(TokenLogprob, text=st.binary(max_size=20), logprob=_floats, top=_alternatives)
_prompt_tokens = st.builds(
    PromptToken, text=st.binary(max_size=20), logprob=_optional(_floats), top=_alternatives
)
_parts = (
    st.builds(Text, text=_texts)
    | st.builds(Reasoning, text=_texts)
    | st.builds(ToolCall, index=_integers, arguments=_texts, name=_optional(_texts))
    | st.builds(Logprobs, tokens=_tuples(_logprobs))
    | st.builds(PromptLogprobs, begin=_integers, tokens=_tuples(_prompt_tokens))
)
_deltas = st.builds(
    Delta,
    request_id=_texts,
    token_ids=_tuples(_token_ids),
    parts=_tuples(_parts),
    finish_reason=st.sampled_from([None, "stop", "length"]),
    usage=_optional(
        st.builds(
            Usage, prompt_tokens=_integers, completion_tokens=_integers, cached_tokens=_integers
        )
    ),
    guesses=st.builds(Guesses, accepted=_counts, rejected=_counts),
)

_bounds = st.builds(Bound, bytes=_integers, tokens=_optional(_integers), reason=_texts)

_from_gateway: dict[type[Message], st.SearchStrategy[Any]] = {
    RunCommand: st.builds(
        RunCommand,
        command=st.lists(_texts).map(tuple),
        environment=st.dictionaries(_texts, _texts),
        folder=_texts,
        health=_optional(_texts),
    ),
    Load: st.builds(
        Load,
        path=_texts,
        max_concurrency=_integers,
        context_tokens=_integers,
        limit_bytes=_optional(_integers),
        beside_bytes=_integers,
        working_bytes=_integers,
        working_token_bytes=_integers,
        wire=st.booleans(),
        model_id=_texts,
        stall_s=_floats,
        prompt_cache=_optional(
            st.builds(
                PromptCacheDisk,
                folder=_texts,
                most_bytes=_integers,
                most_bytes_per_hour=_integers,
            )
        ),
        kv_bits=_optional(_integers),
        adapter_path=_optional(_texts),
        draft_path=_optional(_texts),
        draft_tokens=_integers,
        guesses=st.booleans(),
        bound=_optional(_bounds),
    ),
    Generate: st.builds(
        Generate,
        request_id=_texts,
        prompt=_prompts,
        sampling=_samplings,
        max_tokens=_optional(_integers),
        priority=_integers,
        stop=_tuples(_texts),
        ignore_eos=st.booleans(),
        delivered=_packed,
        cache_salt=_texts,
        prediction=_texts,
        counts=st.booleans(),
        sharer=_texts,
        share=_integers,
    ),
    Embed: st.builds(
        Embed,
        request_id=_texts,
        inputs=_tuples(
            st.builds(TextPrompt, text=_texts) | st.builds(TokenPrompt, token_ids=_packed)
        ),
        priority=_integers,
        query=_optional(_texts),
        prompt_name=_optional(_texts),
        role=st.sampled_from([None, "query", "document"]),
        truncate=_optional(_integers),
        dimensions=_optional(_integers),
        sharer=_texts,
        share=_integers,
    ),
    Cancel: st.builds(Cancel, request_id=_texts),
    Limit: st.builds(
        Limit, limit_bytes=_integers, beside_bytes=_integers, bound=_optional(_bounds)
    ),
    ClearPromptCache: st.builds(ClearPromptCache),
    Drain: st.builds(Drain),
    Move: st.builds(Move, address=_texts, key=st.binary(max_size=40), parent=_integers),
    Settle: st.builds(Settle),
    Stay: st.builds(Stay),
    Stop: st.builds(Stop),
}
_from_worker: dict[type[Message], st.SearchStrategy[Any]] = {
    Moved: st.builds(Moved),
    RankLost: st.builds(RankLost, rank=_integers),
    Need: st.builds(
        Need,
        limit_bytes=_integers,
        used_bytes=_integers,
        wanted_bytes=_integers,
        least_bytes=_integers,
        held=_integers,
        cache_bytes=_integers,
        cache_wanted_bytes=_integers,
        context_tokens=_integers,
        prompt=_integers,
    ),
    PromptCacheCleared: st.builds(PromptCacheCleared, reclaimed_bytes=_integers),
    CacheProven: st.builds(CacheProven, blocks=_integers, tokens=_integers, failures=_integers),
    CacheQuarantined: st.builds(
        CacheQuarantined, blocks=_integers, blocks_bytes=_integers, source=st.text(), why=st.text()
    ),
    Hello: st.builds(
        Hello,
        protocol_version=st.just(PROTOCOL_VERSION),
        pid=_integers,
        incarnation=_integers,
        python_version=_texts,
        mlx_version=_texts,
        mlx_lm_version=_texts,
        device=_devices,
    ),
    LoadProgress: st.builds(LoadProgress, loaded_bytes=_integers, total_bytes=_integers),
    Ready: st.builds(
        Ready,
        load_s=_floats,
        weight_bytes=_integers,
        context_tokens=_integers,
        fingerprint=_texts,
        memory=_memories,
        abilities=_tuples(st.sampled_from(["text", "embedding", "score"])),
        sampling=st.builds(SamplingDefaults, _floats, _floats, _integers, _floats),
        alone=_texts,
    ),
    LoadFailed: st.builds(LoadFailed, reason=_texts, permanent=st.booleans()),
    Rendered: st.builds(Rendered, request_id=_texts, token_ids=_packed, last=st.booleans()),
    Output: st.builds(Output, step=_integers, deltas=_tuples(_deltas)),
    Embedded: st.builds(
        Embedded,
        request_id=_texts,
        dimensions=_integers,
        vectors=st.binary(max_size=40),
        tokens=_integers,
        last=st.booleans(),
    ),
    RequestFailed: st.builds(
        RequestFailed,
        request_id=_texts,
        code=st.sampled_from(
            [
                "invalid_request_error",
                "context_length_exceeded",
                "insufficient_memory",
                "internal_error",
            ]
        ),
        message=_texts,
        field=_optional(st.sampled_from(["prompt", "tools", "inputs", "truncate"])),
        picture=_optional(_integers),
    ),
    OutputInvalid: st.builds(
        OutputInvalid,
        request_id=_texts,
        goes_on=st.booleans(),
        quarantined_blocks=_integers,
    ),
    Costs: st.builds(Costs, seconds=st.dictionaries(_texts, st.floats(0, 86_400), max_size=3)),
    Heartbeat: st.builds(
        Heartbeat,
        step=_integers,
        step_age_s=_optional(_floats),
        active=_integers,
        waiting=_integers,
        memory=_memories,
        prompt_cache_bytes=_integers,
    ),
}
_any_from_gateway = st.one_of(*_from_gateway.values())
_any_from_worker = st.one_of(*_from_worker.values())
_any_message = _any_from_gateway | _any_from_worker

_OUTPUT_START = b"\x83\xa4type\xa6output\xa4step\x01\xa6deltas"
_HELLO_START = b"\x82\xa4type\xa5hello\xb0protocol_version"


def _reject(frame: bytes) -> list[str]:
    """Both sides refuse the frame; returns what they say."""
    messages = []
    for decode in (decode_from_worker, decode_from_gateway):
        with pytest.raises(ProtocolError) as raised:
            decode(frame)
        messages.append(str(raised.value))
    return messages


def _survive(frame: bytes) -> None:
    """Both sides read the frame or raise a ProtocolError that can be read; nothing else happens."""
    for decode in (decode_from_worker, decode_from_gateway):
        try:
            decode(frame)
        except ProtocolError as error:
            assert 0 < len(str(error)) <= _LONGEST_SENTENCE  # noqa: PT017


def _pack(fields: object) -> bytes:
    return msgspec.msgpack.encode(fields)


class TestRoundTrip:
    @given(_any_from_gateway)
    def test_messages_of_the_gateway_arrive_unchanged(self, message: GatewayMessage):
        assert decode_from_gateway(encode(message)) == message

    @given(_any_from_worker)
    def test_messages_of_a_worker_arrive_unchanged(self, message: WorkerMessage):
        assert decode_from_worker(encode(message)) == message

    def test_every_message_of_the_protocol_was_generated(self):
        assert {*_from_gateway, *_from_worker} == set(Message.__subclasses__())

    @given(_any_from_worker)
    def test_the_gateway_side_takes_no_worker_message(self, message: WorkerMessage):
        with pytest.raises(ProtocolError):
            decode_from_gateway(encode(message))

    @given(_any_from_gateway)
    def test_the_worker_side_takes_no_gateway_message(self, message: GatewayMessage):
        with pytest.raises(ProtocolError):
            decode_from_worker(encode(message))


class TestBrokenFrames:
    @given(st.binary(max_size=300))
    def test_arbitrary_bytes(self, frame: bytes):
        _survive(frame)

    @given(
        st.recursive(
            st.none() | st.booleans() | _integers | _floats | _texts | st.binary(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=4) | st.dictionaries(_texts | _integers, inner, max_size=4)
            ),
            max_leaves=12,
        )
    )
    def test_arbitrary_msgpack(self, value: object):
        _survive(_pack(value))

    @given(_any_message, st.data())
    def test_a_truncated_frame_is_always_refused(self, message: Message, data: st.DataObject):
        frame = encode(message)
        cut = data.draw(st.integers(0, len(frame) - 1))
        assert all(f"{cut} bytes" in text for text in _reject(frame[:cut]))

    @settings(max_examples=300)
    @given(_any_message, st.data())
    def test_a_flipped_bit(self, message: Message, data: st.DataObject):
        frame = bytearray(encode(message))
        bit = data.draw(st.integers(0, len(frame) * 8 - 1))
        frame[bit // 8] ^= 1 << bit % 8
        _survive(bytes(frame))

    @given(_any_message, st.binary(min_size=1, max_size=20))
    def test_bytes_after_the_message_are_refused(self, message: Message, rest: bytes):
        _reject(encode(message) + rest)

    def test_an_empty_frame(self):
        assert all("0 bytes" in text for text in _reject(b""))

    def test_text_that_is_not_utf8(self):
        _reject(b"\x81\xa4type\xa2\xff\xff")
        _reject(_OUTPUT_START + b"\x91\x93\xa1r\x90\xa2\xc3\x28")

    def test_an_unknown_type(self):
        assert all("bogus" in text for text in _reject(_pack({"type": "bogus"})))

    @pytest.mark.parametrize(
        "fields", [{}, {"type": 1}, {"type": None}, {"step": 1}, [], 0, "stop"]
    )
    def test_no_type(self, fields: object):
        _reject(_pack(fields))

    def test_a_missing_field_is_named(self):
        with pytest.raises(ProtocolError, match="request_id"):
            decode_from_gateway(_pack({"type": "cancel"}))

    def test_an_unknown_field_is_named(self):
        with pytest.raises(ProtocolError, match="colour"):
            decode_from_gateway(_pack({"type": "stop", "colour": 1}))

    def test_a_field_of_another_type_is_named(self):
        with pytest.raises(ProtocolError, match="request_id"):
            decode_from_gateway(_pack({"type": "cancel", "request_id": 1}))


class TestBounds:
    @pytest.mark.parametrize(
        ("decode", "limit_bytes"),
        [
            (decode_from_worker, MAX_WORKER_FRAME_BYTES),
            (decode_from_gateway, MAX_GATEWAY_FRAME_BYTES),
        ],
    )
    def test_an_oversized_frame_is_refused_with_both_numbers(self, decode: Any, limit_bytes: int):
        with pytest.raises(ProtocolError, match=rf"{limit_bytes + 1}\b.*\b{limit_bytes}\b"):
            decode(bytes(limit_bytes + 1))

    def test_the_largest_frame_is_still_read(self):
        empty = encode(LoadFailed(reason="x" * (1 << 16), permanent=True))
        text = "x" * ((1 << 16) + MAX_WORKER_FRAME_BYTES - len(empty))
        frame = encode(LoadFailed(reason=text, permanent=True))
        assert len(frame) == MAX_WORKER_FRAME_BYTES
        assert decode_from_worker(frame) == LoadFailed(reason=text, permanent=True)

    @pytest.mark.parametrize("start", [b"", _OUTPUT_START, _HELLO_START, b"\x81\xa4type"])
    @pytest.mark.parametrize(
        "declaration",
        [
            *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"),
            *(b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xdc\xff\xff"),
            *(b"\x91\x95\xa1r\xdd\xff\xff\xff\xff", b"\xdd\x7f\xff\xff\xff\x00"),
        ],
        ids=bytes.hex,
    )
    def test_a_huge_declared_length_takes_no_memory(self, start: bytes, declaration: bytes):
        tracemalloc.start()
        try:
            _reject(start + declaration)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 1 << 20

    def test_a_frame_of_many_small_values_takes_a_bounded_multiple(self):
        frame = b"\x81\xa4type\xdd\x00\x0f\x00\x00" + b"\x80" * 0xF0000
        tracemalloc.start()
        try:
            _reject(frame)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # An empty map is 64 bytes and a pointer to it.
        assert peak_bytes < 100 * MAX_WORKER_FRAME_BYTES

    @pytest.mark.parametrize("depth", [100, 900, 1_100, 100_000])
    @pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k"], ids=["arrays", "maps"])
    @pytest.mark.parametrize("start", [b"", _OUTPUT_START, _HELLO_START])
    def test_deep_nesting(self, start: bytes, opening: bytes, depth: int):
        _reject(start + opening * depth + b"\xc0")

    @pytest.mark.parametrize(
        "fields",
        [
            {"type": "x" * 100_000},
            {"type": "stop", "x" * 100_000: 1},
            {"type": "hello", "protocol_version": "x" * 100_000},
            {"type": "output", "step": 1, "deltas": [["r", [], "", "x" * 100_000]]},
            {"type": "output", "step": 1, "deltas": [], "x" * 100_000: 1},
        ],
        ids=["type", "field", "version", "enumeration", "field of a worker"],
    )
    def test_the_error_is_short_however_long_the_text_at_fault(self, fields: object):
        assert all(len(text) <= _LONGEST_SENTENCE for text in _reject(_pack(fields)))


class TestVersion:
    @given(st.text(min_size=1, max_size=20).filter(lambda version: version != PROTOCOL_VERSION))
    def test_a_hello_of_another_version(self, version: str):
        hello = Hello(
            protocol_version=version,
            pid=1,
            incarnation=1,
            python_version="",
            mlx_version="",
            mlx_lm_version="",
            device=Device(name="", architecture=""),
        )
        with pytest.raises(VersionError) as raised:
            decode_from_worker(encode(hello))
        assert f"version {version}," in str(raised.value)
        assert f"speaks {PROTOCOL_VERSION}" in str(raised.value)

    @pytest.mark.parametrize(
        "others",
        [{}, {"pid": "seven"}, {"greeting": "good day"}, {"device": None, "features": ["a", {}]}],
    )
    def test_another_version_is_named_whatever_its_fields_are(self, others: dict[str, object]):
        frame = _pack({"type": "hello", "protocol_version": "6-1234", **others})
        with pytest.raises(VersionError, match=r"version 6-1234, .*installation"):
            decode_from_worker(frame)

    @pytest.mark.parametrize("version", [4, 2.5, None, True])
    def test_a_version_that_is_no_text(self, version: object):
        frame = _pack({"type": "hello", "protocol_version": version})
        with pytest.raises(VersionError, match=f"version {version},"):
            decode_from_worker(frame)

    def test_a_broken_hello_of_this_version_names_the_field(self):
        frame = _pack({"type": "hello", "protocol_version": PROTOCOL_VERSION, "pid": "seven"})
        with pytest.raises(ProtocolError, match="pid"):
            decode_from_worker(frame)


class TestTokenIds:
    @given(st.lists(_token_ids))
    def test_round_trip(self, token_ids: list[int]):
        assert unpack(pack(token_ids)) == token_ids

    def test_are_little_endian(self):
        assert pack([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"

    @pytest.mark.parametrize("token_id", [-1, LARGEST_TOKEN_ID + 1])
    def test_out_of_range(self, token_id: int):
        with pytest.raises(OverflowError):
            pack([token_id])

    @pytest.mark.parametrize("length", [1, 2, 3, 5])
    def test_no_whole_ids(self, length: int):
        with pytest.raises(ValueError, match="multiple"):
            unpack(bytes(length))
