"""The message set between the gateway and one worker.

A conversation: the worker says `Hello`, the gateway `Load`; `LoadProgress` follows until `Ready`
or `LoadFailed`. Then every `Generate` is answered by `Rendered` and its share of `Output`, up to a
delta with a finish reason, or by `RequestFailed`. `Heartbeat` flows all the while. `Drain` or
`Stop` ends it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from protocol.tokens import LARGEST_TOKEN_ID

PROTOCOL_VERSION = 1
# Half a megabyte: well within a worker's frame.
TOKENS_PER_RENDERED = 1 << 17

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN_ID)]
FinishReason: TypeAlias = Literal["stop", "length"]
RequestErrorCode: TypeAlias = Literal[
    "invalid_request_error", "context_length_exceeded", "internal_error"
]


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of everything that travels alone in a frame."""


# Parts of messages


class Device(Struct, frozen=True, kw_only=True):
    """What MLX computes on. Linux's CPU back end reports no memory figures."""

    name: str
    architecture: str
    recommended_working_set_bytes: int | None = None
    memory_bytes: int | None = None


class MlxMemory(Struct, frozen=True, kw_only=True):
    """MLX's own account of its allocations, in bytes."""

    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0


class ChatMessage(Struct, frozen=True):
    role: str
    content: str


class ChatPrompt(Struct, frozen=True, tag="chat", tag_field="kind"):
    """Rendered by the model's chat template."""

    messages: tuple[ChatMessage, ...]


class TextPrompt(Struct, frozen=True, tag="text", tag_field="kind"):
    text: str


class TokenPrompt(Struct, frozen=True, tag="tokens", tag_field="kind"):
    """Ids packed as `protocol.tokens` does."""

    token_ids: bytes


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


class Sampling(Struct, frozen=True, kw_only=True):
    """How the next token is chosen. None: as the model's generation_config.json says."""

    seed: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


class Usage(Struct, frozen=True):
    """Token counts of one request; an end-of-sequence token counts as generated."""

    prompt_tokens: int
    completion_tokens: int


class Delta(Struct, frozen=True, array_like=True):
    """What one engine step added to one request. Positional on the wire: most bytes are these.

    `text` may lag behind `token_ids` (an unfinished character or stop sequence is held back); it
    is complete in the delta that carries the finish reason and the usage.
    """

    request_id: str
    token_ids: tuple[TokenId, ...]
    text: str
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


# Gateway to worker


class Load(Message, frozen=True, tag="load"):
    """Load a model. `grant_bytes` bounds the process; None leaves MLX's own limits in place.

    `baseline_bytes` is the footprint of the worker before the load: MLX may have the rest. Of that
    `working_bytes` are kept free for activations, and what the weights leave is for caches.
    """

    path: str
    max_concurrency: int
    context_tokens: int
    grant_bytes: int | None = None
    baseline_bytes: int = 0
    working_bytes: int = 0


class Generate(Message, frozen=True, tag="generate"):
    """Run one request, or go on with one that an earlier worker began.

    `max_tokens` None: up to the end of the context. `delivered` are the packed ids that the client
    has the text of: they count towards `max_tokens`, and generation goes on after them.
    """

    request_id: str
    prompt: Prompt
    sampling: Sampling
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    delivered: bytes = b""


class Cancel(Message, frozen=True, tag="cancel"):
    """Drop a request; unknown ones are ignored, since the answer may have crossed this message."""

    request_id: str


class Trim(Message, frozen=True, tag="trim"):
    """Give back what can be spared: the footprint is over the grant."""


class Drain(Message, frozen=True, tag="drain"):
    """Take no new request, finish what runs, then exit with status 0."""


class Stop(Message, frozen=True, tag="stop"):
    """Drop what runs, give the memory back, exit with status 0."""


# Worker to gateway


class Hello(Message, frozen=True, tag="hello"):
    protocol_version: int
    pid: int
    incarnation: int
    python_version: str
    mlx_version: str
    mlx_lm_version: str
    device: Device


class LoadProgress(Message, frozen=True, tag="load-progress"):
    loaded_bytes: int
    total_bytes: int


class Ready(Message, frozen=True, tag="ready"):
    """The model answers. `context_tokens` is the lesser of the configured and the model's own.

    `fingerprint` changes when weights, tokenizer or template do: a request that has begun may go
    on only where it is the same.
    """

    load_s: float
    weight_bytes: int
    context_tokens: int
    batching: bool
    fingerprint: str
    memory: MlxMemory


class LoadFailed(Message, frozen=True, tag="load-failed"):
    """One readable reason. `permanent`: another attempt cannot help until the files change."""

    reason: str
    permanent: bool


class Rendered(Message, frozen=True, tag="rendered"):
    """The prompt of a request as packed token ids, before the first output of that request.

    A prompt longer than `TOKENS_PER_RENDERED` comes in several, in order; `last` ends it. Templates
    print dates, so another worker must go on from these ids instead of rendering anew. Not sent for
    a `TokenPrompt`.
    """

    request_id: str
    token_ids: bytes
    last: bool


class Output(Message, frozen=True, tag="output"):
    """Everything one engine step made, for all requests."""

    step: int
    deltas: tuple[Delta, ...]


class RequestFailed(Message, frozen=True, tag="request-failed"):
    """A request that can't be run; the others are untouched."""

    request_id: str
    code: RequestErrorCode
    message: str


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sent once a second by the thread beside the engine.

    `step` counts engine steps (decoding and prefill chunks), `step_age_s` is the time since the
    last one ended, None before the first. `waiting` requests are not yet in the engine's batch.
    """

    step: int
    step_age_s: float | None
    active: int
    waiting: int
    memory: MlxMemory


GatewayMessage: TypeAlias = Load | Generate | Cancel | Trim | Drain | Stop
WorkerMessage: TypeAlias = (
    Hello | LoadProgress | Ready | LoadFailed | Rendered | Output | RequestFailed | Heartbeat
)
