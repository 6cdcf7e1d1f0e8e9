"""What is on the wire is MessagePack, as a reader that isn't ours sees it: maps by field name."""

from __future__ import annotations

from typing import Any, get_args

import msgpack
import pytest
from msgspec import Struct
from msgspec.structs import asdict, fields

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
    PromptCaching,
    RankLost,
    Ranks,
    Ready,
    RunCommand,
    Settle,
    Stay,
    Stop,
)
from protocol.message_base import Message, pack
from protocol.messages import (
    PROTOCOL_VERSION,
    GatewayMessage,
    WorkerMessage,
    decode_from_gateway,
    decode_from_worker,
    encode,
)
from protocol.requests import (
    CalledTool,
    Cancel,
    ChatMessage,
    ChatPrompt,
    Constraint,
    Embed,
    Generate,
    Picture,
    Prompt,
    Sampling,
    SamplingDefaults,
    TextPrompt,
    TokenPrompt,
    Tools,
)

USAGE = Usage(10, 20, 5, stored_tokens=4)
MEMORY = MlxMemory(active_bytes=1 << 40, cache_bytes=7, peak_bytes=(1 << 40) + 1)
SAMPLING = Sampling(
    repetition_penalty=1.1,
    repetition_context_tokens=30,
    seed=(1 << 63) - 1,
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    frequency_penalty=0.5,
    presence_penalty=-0.25,
    logit_bias=((5, -100.0), (7, 2.5)),
    allowed_token_ids=(5, 7, 9),
    bad_words=("sea",),
    min_tokens=4,
    stop_token_ids=(11,),
    xtc_probability=0.25,
    xtc_threshold=0.05,
)
PICTURE = Picture(b"\x89PNG\r\n\x1a\n", 7, "messages[1].content[1].image_url")
PROMPTS = {
    ChatPrompt: ChatPrompt(
        (
            ChatMessage("system", "Be brief."),
            ChatMessage("user", "Größe? 日本", name="Ada", pictures=(PICTURE,)),
            ChatMessage("assistant", "", "Hm.", (CalledTool("c1", "size", '{"of": "日本"}'),)),
            ChatMessage("tool", "377,975 km²", tool_call_id="c1"),
        ),
        '{"enable_thinking": false}',
    ),
    TextPrompt: TextPrompt("Once upon a time", "the end"),
    TokenPrompt: TokenPrompt(pack([0, 1, 151_645])),
}


def _generate(prompt: Prompt) -> Generate:
    return Generate(
        request_id="r-1",
        prompt=prompt,
        sampling=SAMPLING,
        max_tokens=100,
        priority=3,
        stop=("\n\n", "END"),
        include_stop=True,
        ignore_eos=True,
        delivered=pack([5, 6]),
        cache_salt="mine",
        parsed=True,
        tools=Tools(definitions="[]", choice="required", name="size", parallel=False),
        constraint=Constraint("regex", "[a-z]+"),
        reasoning_tokens=500,
        logprobs=2,
        echo=True,
        thinks=False,
        prompt_logprobs=1,
        prediction="It is 377,975 km².",
        counts=True,
        sharer="5f2b",
        share=3,
        cold=True,
        repetition_stop=True,
    )


SAMPLES: dict[type[Message], Message] = {
    RunCommand: RunCommand(
        command=("llama-server", "--port", "{port}"),
        environment={"LANG": "C"},
        folder="/srv",
        health="/health",
    ),
    Load: Load(
        path="/models/Größe",
        max_concurrency=32,
        context_tokens=32_768,
        limit_bytes=12_000_000_000,
        beside_bytes=300_000_000,
        working_bytes=500_000_000,
        working_token_bytes=65_536,
        wire=False,
        bound=Bound(20_000_000_000, 16_384, "At most 20 GB can be had."),
        model_id="qwen3-4b",
        stall_s=0.25,
        prompt_cache=PromptCacheDisk(
            folder="/var/prompts", most_bytes=20_000_000_000, most_bytes_per_hour=50_000_000_000
        ),
        kv_bits=8,
        adapter_path="/models/adapter",
        draft_path="/models/draft",
        draft_tokens=3,
        guesses=False,
        pictures=True,
        ranks=Ranks(
            size=2,
            backend="ring",
            split="tensor",
            addresses=(("127.0.0.1:5000",), ("127.0.0.1:5001",)),
            endpoint="ipc:///run/1.rank",
            keys=(b"a" * 40, b"b" * 40),
            silence_s=10.0,
            devices=((None, "rdma_en2"), ("rdma_en2", None)),
        ),
        awaited=True,
        cache_failures=1,
    ),
    Generate: _generate(PROMPTS[ChatPrompt]),
    Embed: Embed(
        request_id="r-1",
        inputs=(PROMPTS[TextPrompt], PROMPTS[TokenPrompt]),
        priority=3,
        query="ships",
        prompt_name="query",
        role="document",
        truncate=-1,
        dimensions=256,
        sharer="5f2b",
        share=3,
    ),
    Cancel: Cancel(request_id="r-1"),
    Limit: Limit(
        limit_bytes=9_000_000_000,
        beside_bytes=400_000_000,
        bound=Bound(10_000_000_000, None, "At most 10 GB can be had."),
    ),
    ClearPromptCache: ClearPromptCache(),
    PromptCacheCleared: PromptCacheCleared(reclaimed_bytes=1_000_000),
    CacheProven: CacheProven(blocks=12, tokens=512, failures=1, off=True),
    CacheQuarantined: CacheQuarantined(
        blocks=2,
        blocks_bytes=3_000_000,
        source="a prompt joined of 2 blocks",
        why="a checksum differs",
    ),
    Drain: Drain(),
    Move: Move(address="ipc:///s/next", key=b"kkkk", parent=7),
    Moved: Moved(),
    RankLost: RankLost(rank=2),
    Settle: Settle(),
    Stay: Stay(),
    Stop: Stop(),
    Hello: Hello(
        protocol_version=PROTOCOL_VERSION,
        pid=4242,
        incarnation=7,
        python_version="3.12.1",
        mlx_version="0.30.0",
        mlx_lm_version="0.28.0",
        device=Device(
            name="Apple M3 Ultra",
            architecture="applegpu_g15d",
            recommended_working_set_bytes=400_000_000_000,
            memory_bytes=512_000_000_000,
        ),
    ),
    LoadProgress: LoadProgress(loaded_bytes=1_000_000_000, total_bytes=5_000_000_000),
    Ready: Ready(
        load_s=1.5,
        weight_bytes=5_000_000_000,
        context_tokens=32_768,
        fingerprint="0f3a",
        memory=MEMORY,
        abilities=("embedding", "score"),
        sampling=SamplingDefaults(0.6, 0.95, 20, 0.05),
        address="127.0.0.1:8080",
        alone="the caches of this model can't be merged",
        prompts=PromptCaching("0f", at_places=True, on_disk=True),
    ),
    LoadFailed: LoadFailed(reason="there are no weights", permanent=True),
    Rendered: Rendered(request_id="r-1", token_ids=pack([1, 2, 3]), last=True),
    Output: Output(
        step=9,
        deltas=(
            Delta("r-1", (1, 2), (Reasoning("Once"), Text(" upon")), guesses=Guesses(1, 2)),
            Delta("r-2", (3,), (ToolCall(0, "{", "size"),), "stop", USAGE, "END"),
            Delta(
                "r-3", (4,), (Logprobs((TokenLogprob(b"a", -1.5, (Alternative(b"b", -2.5),)),)),)
            ),
            Delta("r-4", (), (PromptLogprobs(0, (PromptToken(b"a", None),)),)),
        ),
    ),
    Embedded: Embedded(
        request_id="r-1", dimensions=2, vectors=b"\0\0\x80\x3f" * 4, tokens=9, last=True
    ),
    RequestFailed: RequestFailed(
        request_id="r-1", code="internal_error", message="no", field="prompt", picture=1
    ),
    Need: Need(
        limit_bytes=9_000_000_000,
        used_bytes=7_000_000_000,
        wanted_bytes=11_000_000_000,
        least_bytes=6_000_000_000,
        held=4,
        context_tokens=16_384,
        prompt=7,
        cache_bytes=2_000_000_000,
        cache_wanted_bytes=3_000_000_000,
        rows=64,
    ),
    OutputInvalid: OutputInvalid(request_id="r-1", goes_on=True, quarantined_blocks=3),
    Costs: Costs(seconds={"5f2b": 0.25}),
    Heartbeat: Heartbeat(
        step=3, step_age_s=0.25, active=2, waiting=1, memory=MEMORY, prompt_cache_bytes=9
    ),
}


def _plain(value: Any) -> Any:
    """What MessagePack has for a value: maps with the tag, arrays, and the rest as it is."""
    if isinstance(value, Struct):
        config = value.__struct_config__
        if config.array_like:
            tag = [] if config.tag is None else [config.tag]
            return tag + [_plain(getattr(value, field.name)) for field in fields(value)]
        named = {} if config.tag_field is None else {config.tag_field: config.tag}
        return named | {name: _plain(item) for name, item in asdict(value).items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def test_no_message_is_missing() -> None:
    assert set(SAMPLES) == {*get_args(GatewayMessage), *get_args(WorkerMessage)}
    assert set(PROMPTS) == set(get_args(Prompt))


@pytest.mark.parametrize("kind", SAMPLES)
def test_each_message_is_messagepack(kind: type[Message]) -> None:
    sample = SAMPLES[kind]
    for field in fields(kind):
        assert getattr(sample, field.name) != field.default, f"{field.name} shows nothing"
    assert msgpack.unpackb(encode(sample)) == _plain(sample)


@pytest.mark.parametrize("kind", PROMPTS)
def test_each_prompt_is_messagepack(kind: type[Prompt]) -> None:
    unpacked = msgpack.unpackb(encode(_generate(PROMPTS[kind])))
    assert unpacked["prompt"] == _plain(PROMPTS[kind])


@pytest.mark.parametrize("kind", SAMPLES)
def test_messages_that_another_library_packs_are_decoded(kind: type[Message]) -> None:
    sample = SAMPLES[kind]
    decode = decode_from_gateway if kind in get_args(GatewayMessage) else decode_from_worker
    assert decode(msgpack.packb(_plain(sample))) == sample
