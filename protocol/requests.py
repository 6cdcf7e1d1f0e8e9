"""Requests to a worker that is ready: prompts, pictures, and the tasks for them."""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from protocol.message import Message, TokenId

# The bytes of all encoded pictures of one request: as many as a body of 32 MiB can hold in base64.
# With the texts they are within one frame.
MOST_PICTURE_BYTES: Final = 24 << 20
MOST_PICTURES: Final = 64
# The pixels of all pictures of one request, by their headers. The largest sensors of telephones
# have 50 million.
MOST_PIXELS: Final = 64_000_000
# The pixels of one picture as a model gets it. Larger pictures are made smaller, as OpenAI does.
MOST_SEEN_PIXELS: Final = 2048 * 2048


class Picture(Struct, frozen=True):
    """The bytes of a picture's file. The picture stands before character `at` of its message's
    text. `name` is its place in the client's request, for errors.
    """

    data: bytes
    at: int
    name: str


class CalledTool(Struct, frozen=True):
    """A call in a conversation's history. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True):
    """A message of a conversation. An assistant's message has its reasoning and its calls; a tool's
    result has the id of the call that it answers. Pictures are in the order of their places in the
    text.
    """

    role: str
    content: str
    reasoning: str | None = None
    tool_calls: tuple[CalledTool, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    pictures: tuple[Picture, ...] = ()


class ChatPrompt(Struct, frozen=True, tag="chat", tag_field="kind"):
    """A conversation that the model's chat template renders. The template also gets the
    `template_arguments`, a JSON object as text.
    """

    messages: tuple[ChatMessage, ...]
    template_arguments: str = ""

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The pictures of all messages, in order."""
        return tuple(picture for each in self.messages for picture in each.pictures)


class TextPrompt(Struct, frozen=True, tag="text", tag_field="kind"):
    """A text to continue. With a `suffix` the answer is the text between the two."""

    text: str
    suffix: str | None = None


class TokenPrompt(Struct, frozen=True, tag="tokens", tag_field="kind"):
    """Token ids, packed by `protocol.message`."""

    token_ids: bytes


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


# The most alternatives to a token, as of OpenAI and vLLM.
MOST_ALTERNATIVES = 20

ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "grammar", "choice"]
ToolChoice: TypeAlias = Literal["auto", "none", "required"]


class Sampling(Struct, frozen=True, kw_only=True):
    """How the next token is chosen. None: as the model's generation_config.json says; no penalty.

    The logit of each token among the last `repetition_context_tokens` is divided by
    `repetition_penalty`, or multiplied if it is negative (Keskar et al., 2019). The logit of each
    token of the answer loses `frequency_penalty` for each time that it came, and `presence_penalty`
    once; `logit_bias` is added to the logits that it names (all three as OpenAI defines them).

    Only `allowed_token_ids` are chosen, if there are any; no text of `bad_words` is completed.
    Tokens that end an answer, the model's own and the `stop_token_ids`, are not chosen among its
    first `min_tokens`. With `xtc_probability`, if several tokens have more than `xtc_threshold`,
    all of these but the least likely are left out.
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


class SamplingDefaults(Struct, frozen=True):
    """The settings of a model's generation_config.json; OpenAI's defaults for settings that it
    lacks.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


class Tools(Struct, frozen=True, kw_only=True):
    """The tools that a model may call. `definitions` is OpenAI's list of tools, as JSON text. With
    "required" the model calls a tool, the one with this `name` if there is a name. Without
    `parallel` it makes at most one call. `mentioned` is a list of the same kind, of tools that the
    conversation itself introduces. The template doesn't get that list, so the beginning of the
    prompt stays as it was. With `whole` a strict schema that can't be enforced is refused.
    """

    definitions: str
    mentioned: str = "[]"
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True
    whole: bool = False

    @property
    def known(self) -> list[Any]:
        """The definitions of all tools. Raises: ValueError: they are no JSON."""
        return [*json.loads(self.definitions), *json.loads(self.mentioned)]


class Constraint(Struct, frozen=True):
    """A form that the text of an answer must match. `source` is a JSON schema, a regular
    expression, a grammar of Lark's kind, or a JSON list of texts to choose from, and empty for any
    JSON object. Parts of a schema that can't be enforced are left out, and the first delta names
    them; with `whole` the request is refused instead.
    """

    kind: ConstraintKind
    source: str = ""
    whole: bool = False


class Generate(Message, frozen=True, tag="generate"):
    """Run one request, or go on with one that an earlier worker began.

    `max_tokens` None: up to the end of the context; 0: the prompt's tokens are counted, even if the
    context is shorter, and only their `prompt_logprobs` are computed. Since clients can't know the
    context, an answer with more `max_tokens` than it has room for ends at its end.

    `delivered` are the packed ids of tokens whose text the client has: they count towards
    `max_tokens`, and generation goes on after them. Only requests with the same `cache_salt` share
    prompts. The token or sequence that ends an answer is no part of its text; with `include_stop`
    one of the `stop` sequences is.

    With `parsed` reasoning and tool calls are parts of their own; otherwise all is text. Reasoning
    ends after `reasoning_tokens`. With `logprobs` every token that has a text comes with its log
    probability and so many alternatives; with `prompt_logprobs` so do the tokens of the prompt,
    which is then computed whole. With `echo` the text begins with the prompt. Without `thinks` a
    constraint holds from the first token on.
    """

    request_id: str
    prompt: Prompt
    sampling: Sampling
    max_tokens: int | None = None
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

    @property
    def counts(self) -> bool:
        """Whether only the prompt's tokens are counted."""
        return self.max_tokens == 0 and self.prompt_logprobs is None


class Embed(Message, frozen=True, tag="embed"):
    """Make a vector of each input. With a `query`, give each input a number instead, which says how
    well it answers the query.

    `prompt_name` names a prompt of the model's files that goes before each input. `role` chooses
    such a prompt by its use; a model without prompts for roles uses none. Inputs that are too long
    are refused, or cut to `truncate` tokens; -1 is the context. `dimensions` cuts vectors.
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
    """Drop a request. Unknown requests are ignored, since an answer may have crossed this
    message.
    """

    request_id: str


# A request's task for a worker.
Task: TypeAlias = Generate | Embed
