"""What is asked of a worker that is ready: prompts, pictures, and what to do with them."""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from protocol.message import Message, TokenId

# Encoded, all of one request: what a body of 32 MiB can hold in base64. With the texts it is within
# one frame.
MOST_PICTURE_BYTES: Final = 24 << 20
MOST_PICTURES: Final = 64
# As their headers say, all of one request; the largest sensors of telephones have 50 million.
MOST_PIXELS: Final = 64_000_000
# Of one picture, as a model gets it: larger ones are made smaller. OpenAI does so, too.
MOST_SEEN_PIXELS: Final = 2048 * 2048


class Picture(Struct, frozen=True):
    """A file's bytes, before so many characters of its message's text. `name` is where its client
    has put it, for errors.
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
    """Ids packed as `protocol.message` does."""

    token_ids: bytes


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


# To a token, as many as OpenAI and vLLM name.
MOST_ALTERNATIVES = 20

ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "grammar", "choice"]
ToolChoice: TypeAlias = Literal["auto", "none", "required"]


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


class SamplingDefaults(Struct, frozen=True):
    """What a model's generation_config.json says; OpenAI's defaults where it says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


class Tools(Struct, frozen=True, kw_only=True):
    """What a model may call. `definitions` is OpenAI's list of tools, as JSON text; with "required"
    it calls one, that of this `name` if there is one. Without `parallel` it calls one at most. What
    is `mentioned`, a list of the same kind, the conversation itself tells of: a template isn't
    given it, so that what comes before stays as it was. Strict schemas are to be had `whole` as a
    constraint is.
    """

    definitions: str
    mentioned: str = "[]"
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True
    whole: bool = False

    @property
    def known(self) -> list[Any]:
        """All of them. Raises: ValueError: they are no JSON."""
        return [*json.loads(self.definitions), *json.loads(self.mentioned)]


class Constraint(Struct, frozen=True):
    """What the text of an answer must match: `source` is a JSON schema, a regular expression, a
    grammar of Lark's kind, or a JSON list of texts to choose from, and empty for any JSON object.
    What of a schema can't be enforced is left out and said, or if it is to be had `whole` refused.
    """

    kind: ConstraintKind
    source: str = ""
    whole: bool = False


class Generate(Message, frozen=True, tag="generate"):
    """Run one request, or go on with one that an earlier worker began.

    `max_tokens` None: up to the end of the context; 0: the prompt's tokens are counted, also beyond
    the context, and nothing is computed but their `prompt_logprobs`. Clients can't know the
    context: what of `max_tokens` it has no room for isn't given.

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
        """Its prompt's tokens are counted, and that is all."""
        return self.max_tokens == 0 and self.prompt_logprobs is None


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


# What a request asks of a worker.
Task: TypeAlias = Generate | Embed
