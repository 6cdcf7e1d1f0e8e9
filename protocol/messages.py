"""The message set between the gateway and one worker.

A conversation: the worker says `Hello`, the gateway `Load`; `LoadProgress` follows until `Ready`
or `LoadFailed`. Then every `Generate` is answered by `Rendered` and its share of `Output`, up to a
delta with a finish reason, or by `RequestFailed`; every `Embed` by one `Embedded` or several, or by
`RequestFailed`. `Heartbeat` flows all the while. `Drain` or `Stop` ends it.

A gateway that is replaced hands its workers over: it says `Move`, and `Moved` is the last that the
worker says on this channel. What follows is held back until the next gateway says `Settle` on the
other channel, or this one `Stay`: nothing is lost in between, and nothing said twice.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from protocol.parts import AnswerPart
from protocol.pictures import Picture
from protocol.ranks import RankBackend, RankSplit
from protocol.shape import digest
from protocol.tokens import LARGEST_TOKEN_ID

# Half a megabyte: well within a worker's frame.
TOKENS_PER_RENDERED = 1 << 17

# To a token, as many as OpenAI and vLLM name.
MOST_ALTERNATIVES = 20

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_TOKEN_ID)]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "grammar", "choice"]
ToolChoice: TypeAlias = Literal["auto", "none", "required"]
RequestErrorCode: TypeAlias = Literal[
    "invalid_request_error", "context_length_exceeded", "insufficient_memory", "internal_error"
]
RequestField: TypeAlias = Literal[
    "prompt",
    "max_tokens",
    "constraint",
    "tools",
    "template_arguments",
    "suffix",
    "prompt_logprobs",
    "logit_bias",
    "allowed_token_ids",
    "stop_token_ids",
    "bad_words",
    "inputs",
    "dimensions",
    "prompt_name",
    "truncate",
]
# What a model makes of a text.
Ability: TypeAlias = Literal["text", "embedding", "score"]


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of everything that travels alone in a frame."""


# Parts of messages


class Device(Struct, frozen=True, kw_only=True):
    """What MLX computes on. Linux's CPU back end reports no memory figures, and CUDA no working
    set: there `memory_bytes` is the card's.
    """

    name: str
    architecture: str
    recommended_working_set_bytes: int | None = None
    memory_bytes: int | None = None


class MlxMemory(Struct, frozen=True, kw_only=True):
    """MLX's own account of its allocations, in bytes."""

    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0


class CalledTool(Struct, frozen=True):
    """A call in a conversation's history. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True):
    """What an assistant thought and called belongs to its message; a tool's result says which call
    it answers. Pictures are in the order in which they stand in the text.
    """

    role: str
    content: str
    reasoning: str | None = None
    tool_calls: tuple[CalledTool, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    pictures: tuple[Picture, ...] = ()


class ChatPrompt(Struct, frozen=True, tag="chat", tag_field="kind"):
    """Rendered by the model's chat template, which gets the `template_arguments`, a JSON object as
    text, too.
    """

    messages: tuple[ChatMessage, ...]
    template_arguments: str = ""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Of all messages, in order."""
        return tuple(picture for each in self.messages for picture in each.pictures)


class TextPrompt(Struct, frozen=True, tag="text", tag_field="kind"):
    """With a `suffix` the answer is what stands between the two."""

    text: str
    suffix: str | None = None


class TokenPrompt(Struct, frozen=True, tag="tokens", tag_field="kind"):
    """Ids packed as `protocol.tokens` does."""

    token_ids: bytes


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


class Sampling(Struct, frozen=True, kw_only=True):
    """How the next token is chosen. None: as the model's generation_config.json says; no penalty.

    What is among the last `repetition_context_tokens` has its logit divided by
    `repetition_penalty`, or multiplied if it is negative (Keskar et al., 2019). From the logits of
    what the answer has are taken `frequency_penalty` for each time and `presence_penalty` once;
    `logit_bias` is added to those that it names (all three as OpenAI defines them).

    Only `allowed_token_ids` are chosen, if there are any; no text of `bad_words` is completed.
    Tokens that end an answer, the model's own and the `stop_token_ids`, are not chosen among its
    first `min_tokens`. With `xtc_probability` all tokens but the least likely of those that have
    more than `xtc_threshold` are left out, where there are several.
    """

    seed: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repetition_context_tokens: int = 20
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    allowed_token_ids: tuple[TokenId, ...] = ()
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[TokenId, ...] = ()
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1


class Tools(Struct, frozen=True, kw_only=True):
    """What a model may call. `definitions` is OpenAI's list of tools, as JSON text; with "required"
    it calls one, that of this `name` if there is one. Without `parallel` it calls one at most.
    """

    definitions: str
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True


class Constraint(Struct, frozen=True):
    """What the text of an answer must match: `source` is a JSON schema, a regular expression, a
    grammar of Lark's kind, or a JSON list of texts to choose from, and empty for any JSON object.
    """

    kind: ConstraintKind
    source: str = ""


class Bound(Struct, frozen=True):
    """The most that a process can get at present, whoever gives it back: in bytes, and as tokens of
    one sequence (None: nobody could tell). `reason` is a sentence that says why it is no more.
    """

    bytes: int
    tokens: int | None
    reason: str


class Ranks(Struct, frozen=True, kw_only=True):
    """The processes that compute one model together; rank 0 is told this, and the others follow it.

    `addresses` has for each rank the places, host:port, at which its neighbours reach it; of NCCL
    and JACCL only the first one of rank 0 counts. `devices` are JACCL's: for each rank its RDMA
    device towards each other one, None towards itself. The followers connect to `endpoint`, a
    ZeroMQ address, and prove themselves by the first of the `keys`. One that is silent for
    `silence_s` is lost.
    """

    size: int
    backend: RankBackend
    split: RankSplit
    addresses: tuple[tuple[str, ...], ...]
    endpoint: str
    keys: tuple[bytes, bytes]
    silence_s: float
    devices: tuple[tuple[str | None, ...], ...] = ()


class Usage(Struct, frozen=True):
    """Token counts of one request; an end-of-sequence token counts as generated. `cached_tokens` of
    the prompt were not computed anew; `reasoning_tokens` of the answer were reasoning and its tags.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class PromptCacheDisk(Struct, frozen=True, kw_only=True):
    """The prompt cache's folder, which all models share, and its bounds in bytes."""

    folder: str
    most_bytes: int
    most_bytes_per_hour: int


class Delta(Struct, frozen=True, array_like=True):
    """What one engine step added to one request. Positional on the wire: most bytes are these.

    `parts` may lag behind `token_ids` (an unfinished character, stop sequence or tag is held back);
    they are complete in the delta that carries the finish reason and the usage, and the stop
    sequence if one ended the answer.
    """

    request_id: str
    token_ids: tuple[TokenId, ...]
    parts: tuple[AnswerPart, ...]
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    stop_sequence: str | None = None


# Gateway to worker


class Load(Message, frozen=True, tag="load"):
    """Load a model. `limit_bytes` bounds the process until a `Limit` changes that; None leaves the
    limits of MLX in place.

    `beside_bytes` is what the process holds beside MLX's account: its footprint before the load. A
    step takes `working_bytes`, and `working_token_bytes` more for each token of its longest
    sequence. The `bound` may have room for fewer tokens than were configured. With `wire` the
    weights are kept from being paged out, where the system can. With `pictures` it looks at them.

    A chunk of prefill may hold up running streams for `stall_s` beside one step. `prompt_cache`
    None keeps prompts in memory alone; what is stored is `model_id`'s. With `kv_bits` sequences are
    kept quantized. The adapter and the draft model are folders. With `ranks` other processes
    compute it too: bytes are those of each.
    """

    path: str
    max_concurrency: int
    context_tokens: int
    limit_bytes: int | None = None
    beside_bytes: int = 0
    working_bytes: int = 0
    working_token_bytes: int = 0
    wire: bool = True
    model_id: str = ""
    stall_s: float = 0.1
    prompt_cache: PromptCacheDisk | None = None
    kv_bits: int | None = None
    adapter_path: str | None = None
    draft_path: str | None = None
    draft_tokens: int = 0
    bound: Bound | None = None
    pictures: bool = False
    ranks: Ranks | None = None


class Generate(Message, frozen=True, tag="generate"):
    """Run one request, or go on with one that an earlier worker began.

    `max_tokens` None: up to the end of the context; 0: the prompt's tokens are counted, also beyond
    the context, and nothing is computed but their `prompt_logprobs`. What of `max_tokens` the
    context has no room for is refused, or with `cut_to_context` not given.

    `delivered` are the packed ids that the client has the text of: they count towards `max_tokens`,
    and generation goes on after them. Only requests with the same `cache_salt` share prompts. What
    ends an answer is no part of its text, but with `include_stop` one of the `stop` sequences is.

    With `parsed` reasoning and tool calls come as parts of their own, else all is text. Reasoning
    ends after `reasoning_tokens`. With `logprobs` every token that has a text has its own and so
    many alternatives; with `prompt_logprobs` so have those of the prompt, which is then computed
    whole. With `echo` the text begins with the prompt's. Without
    `thinks` a constraint holds from the beginning on.
    """

    request_id: str
    prompt: Prompt
    sampling: Sampling
    max_tokens: int | None = None
    cut_to_context: bool = False
    priority: int = 0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    delivered: bytes = b""
    cache_salt: str = ""
    parsed: bool = False
    tools: Tools | None = None
    constraint: Constraint | None = None
    reasoning_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    thinks: bool = True


class Embed(Message, frozen=True, tag="embed"):
    """Make a vector of each input, or with a `query` one number that says how well it answers that.

    `prompt_name` names a prompt of the model's files that goes before each input; `role` is the
    same in other words, and a model that makes no difference has none. Inputs that are too long are
    refused, or cut to `truncate` tokens; -1 is the context. `dimensions` cuts vectors.
    """

    request_id: str
    inputs: tuple[TextPrompt | TokenPrompt, ...]
    priority: int = 0
    query: str | None = None
    prompt_name: str | None = None
    role: Literal["query", "document"] | None = None
    truncate: int | None = None
    dimensions: int | None = None


class Cancel(Message, frozen=True, tag="cancel"):
    """Drop a request; unknown ones are ignored, since the answer may have crossed this message."""

    request_id: str


class Limit(Message, frozen=True, tag="limit"):
    """The process may hold so much from now on: more was lent, or some of it is called back. Its
    bound may be another, too.

    It is obeyed between two steps, and answered by a `Need` with this limit and with the context
    that follows from the bound. Sequences that wait for more than the bound fail.
    """

    limit_bytes: int
    beside_bytes: int
    bound: Bound | None = None


class ClearPromptCache(Message, frozen=True, tag="clear-prompt-cache"):
    """Let go of all prompts in memory; answered by `PromptCacheCleared`."""


class Drain(Message, frozen=True, tag="drain"):
    """Take no new request, finish what runs, then exit with status 0."""


class Stop(Message, frozen=True, tag="stop"):
    """Drop what runs, give the memory back, exit with status 0."""


class Move(Message, frozen=True, tag="move"):
    """Another gateway, the process `parent`, is about to take this worker over: it listens at
    `address`, and `key` opens its channel. Answered by `Moved`.
    """

    address: str
    key: bytes
    parent: int


class Settle(Message, frozen=True, tag="settle"):
    """The next gateway's first word: from now on it is the worker's only one, and its parent."""


class Stay(Message, frozen=True, tag="stay"):
    """The next gateway didn't come up: everything is as it was before `Move`."""


# Worker to gateway


class Hello(Message, frozen=True, tag="hello"):
    protocol_version: str
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
    """The model answers. `context_tokens` is the least of what was configured, what the model can
    and what its memory holds.

    `fingerprint` changes when weights, tokenizer or template do: a request that has begun may go
    on only where it is the same.
    """

    load_s: float
    weight_bytes: int
    context_tokens: int
    batching: bool
    fingerprint: str
    memory: MlxMemory
    abilities: tuple[Ability, ...] = ("text",)


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


class Embedded(Message, frozen=True, tag="embedded"):
    """What was made of the next inputs, in their order: so many numbers of each, packed as
    little-endian floats of four bytes. They had so many `tokens`.
    """

    request_id: str
    dimensions: int
    vectors: bytes
    tokens: int
    last: bool


class RequestFailed(Message, frozen=True, tag="request-failed"):
    """A request that can't be run; the others are untouched. `field` of `Generate` or `Embed` is to
    blame, or a picture, by its number.
    """

    request_id: str
    code: RequestErrorCode
    message: str
    field: RequestField | None = None
    picture: int | None = None


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Sent once a second by the thread beside the engine.

    `step` counts engine steps (decoding and prefill chunks), `step_age_s` is the time since the
    last one ended, None before the first. `waiting` requests are not yet in the engine's batch. The
    prompt cache has `prompt_cache_bytes` in memory.
    """

    step: int
    step_age_s: float | None
    active: int
    waiting: int
    memory: MlxMemory
    prompt_cache_bytes: int = 0


class PromptCacheCleared(Message, frozen=True, tag="prompt-cache-cleared"):
    reclaimed_bytes: int


class Moved(Message, frozen=True, tag="moved"):
    """All that was to be said here has been said."""


class RankLost(Message, frozen=True, tag="rank-lost"):
    """Rank 0 hears nothing of this one any more, and ends."""

    rank: int


class Need(Message, frozen=True, tag="need"):
    """What the worker could use, as limits of its process in bytes; 0 while it has nothing to do.

    It keeps to `limit_bytes`, and takes no new sequence longer than `context_tokens`. `used_bytes`
    holds what runs now; with `wanted_bytes` everything that waits could run too; with less than
    `least_bytes` not even its first sequence can. `held` are the sequences that wait for memory
    alone. `prompt` numbers the prompt that its first sequence is computing, over several steps; 0
    if it computes none.

    The prompt cache has `cache_bytes` beside that, and could use `cache_wanted_bytes`: bytes of its
    own, not limits.
    """

    limit_bytes: int
    used_bytes: int
    wanted_bytes: int
    least_bytes: int
    held: int
    context_tokens: int
    prompt: int = 0
    cache_bytes: int = 0
    cache_wanted_bytes: int = 0


# What a request asks of a worker.
Task: TypeAlias = Generate | Embed
GatewayMessage: TypeAlias = (
    Load
    | Generate
    | Embed
    | Cancel
    | Limit
    | ClearPromptCache
    | Move
    | Settle
    | Stay
    | Drain
    | Stop
)
WorkerMessage: TypeAlias = (
    Hello
    | LoadProgress
    | Ready
    | LoadFailed
    | Rendered
    | Output
    | Embedded
    | RequestFailed
    | Heartbeat
    | Need
    | PromptCacheCleared
    | Moved
    | RankLost
)

# What is said in these words: to be raised when a message means something else than before.
_MEANING: Final = 6
# An installation may change under a gateway that runs: its new workers must not be misunderstood.
PROTOCOL_VERSION: Final = f"{_MEANING}-{digest(GatewayMessage | WorkerMessage)}"
