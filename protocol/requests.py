"""Requests to a worker that is ready: prompts, pictures, and what to do with them."""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from protocol.message_base import Message, TokenId

# The most bytes of all encoded pictures of one request: as many as a body of 32 MiB can hold in
# base64. Pictures and texts together fit into one frame.
MOST_PICTURE_BYTES: Final = 24 << 20
MOST_PICTURES: Final = 64
# The most pixels of all pictures of one request, by their headers. The largest sensors of
# telephones have 50 million.
MOST_PIXELS: Final = 64_000_000
# The most pixels of a picture that a model gets. Larger pictures are made smaller, as OpenAI does.
MOST_SEEN_PIXELS: Final = 2048 * 2048


class Picture(Struct, frozen=True):
    """A picture: the bytes of its file, and its place before character `at` of its message's text.
    `name` is its place in the client's request, for errors.
    """

    data: bytes
    at: int
    name: str


class CalledTool(Struct, frozen=True):
    """A call of a tool in a conversation's history. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class ChatMessage(Struct, frozen=True):
    """A message of a conversation. A message of the assistant has `reasoning` and `tool_calls`. The
    result of a tool has the id of its call. Pictures are in the order of their places in the text.
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
    `template_arguments`, a JSON object as text. With `goes_on` the last message is the assistant's,
    and the answer goes on in it.
    """

    messages: tuple[ChatMessage, ...]
    template_arguments: str = ""
    goes_on: bool = False

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The pictures of all messages, in order."""
        return tuple(picture for message in self.messages for picture in message.pictures)


class TextPrompt(Struct, frozen=True, tag="text", tag_field="kind"):
    """A text to continue. With a `suffix` the answer is the text between `text` and `suffix`."""

    text: str
    suffix: str | None = None


class TokenPrompt(Struct, frozen=True, tag="tokens", tag_field="kind"):
    """Token ids, packed by `protocol.message_base`."""

    token_ids: bytes


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


# The most alternatives to a token that a request may ask for, as with OpenAI and vLLM.
MOST_ALTERNATIVES = 20

ConstraintKind: TypeAlias = Literal["json_object", "json_schema", "regex", "grammar", "choice"]
ToolChoice: TypeAlias = Literal["auto", "none", "required"]


class Sampling(Struct, frozen=True, kw_only=True):
    """How the next token is chosen. A setting that is None is that of the model's
    generation_config.json; a `repetition_penalty` of None is no penalty.

    The logit of each token among the last `repetition_context_tokens` is divided by
    `repetition_penalty`, or multiplied if the logit is negative (Keskar et al., 2019). The logit of
    each token of the answer loses `frequency_penalty` for each time that the token came, and
    `presence_penalty` once. `logit_bias` adds to the logits of the tokens that it names (all three
    as OpenAI defines them).

    If there are `allowed_token_ids`, only these are chosen. No text of `bad_words` is completed.
    The tokens that end an answer are the model's own and the `stop_token_ids`; none of them is
    chosen among the first `min_tokens`. Each step makes a choice with `xtc_probability`: if several
    tokens are more probable than `xtc_threshold`, all of these but the least probable are left out.
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
    """The settings of a model's generation_config.json. A setting that the file lacks has OpenAI's
    default.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0


class Tools(Struct, frozen=True, kw_only=True):
    """The tools that a model may call. `definitions` is OpenAI's list of tools, as JSON text. With
    the choice "required" the model has to call a tool; with a `name`, the tool of that name.
    Without `parallel` the model makes at most one call. `mentioned` lists tools that the
    conversation itself introduces, in the same form. The template doesn't get that list, so the
    beginning of the prompt stays as it was. With `whole` a strict schema that can't be enforced is
    refused.
    """

    definitions: str
    mentioned: str = "[]"
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True
    whole: bool = False

    @property
    def known(self) -> list[Any]:
        """The definitions of all tools. Raises: ValueError: a list of tools is no JSON."""
        return [*json.loads(self.definitions), *json.loads(self.mentioned)]


class Constraint(Struct, frozen=True):
    """A form that the text of an answer must match. `source` is a JSON schema, a regular
    expression, a grammar of Lark's kind, or a JSON list of texts to choose from. For "json_object"
    it is empty. Parts of a schema that can't be enforced are left out, and the first delta names
    them. With `whole` such a request is refused instead.
    """

    kind: ConstraintKind
    source: str = ""
    whole: bool = False


class Generate(Message, frozen=True, tag="generate"):
    """Run one request, or go on with one that an earlier worker began.

    `max_tokens` None: the answer may go on to the end of the context. 0: only the prompt is
    computed, with its `prompt_logprobs`, and stored in the prompt cache. Clients can't know the
    context, so an answer also ends at the end of the context if `max_tokens` is higher. With
    `counts` nothing is computed: only the prompt's tokens are counted, even if the context is
    shorter.

    `delivered` are the packed ids of tokens whose text the client has. They count towards
    `max_tokens`, and generation goes on after them. Only requests with the same `cache_salt` share
    prompts. The token or sequence that ends an answer is no part of its text. With `include_stop`
    a `stop` sequence that ends the answer is.

    With `parsed` reasoning and tool calls are parts of their own; otherwise the whole answer is
    text. Reasoning ends after `reasoning_tokens`. With `logprobs` every token that has a text comes
    with its log probability and so many alternatives. With `prompt_logprobs` the tokens of the
    prompt come with theirs, and the prompt is computed whole. With `echo` the text begins with the
    prompt. Without `thinks` a constraint holds from the first token on. The `prediction` is the
    text that the client expects as the answer, or as parts of the answer. It makes the answer
    faster, and doesn't change the text. Each `sharer` of the model has turns in proportion to its
    `share`. A `cold` request is computed without cached blocks, and stores none. With
    `repetition_stop` the answer ends when it repeats the same tokens again and again.
    """

    request_id: str
    prompt: Prompt
    sampling: Sampling
    max_tokens: int | None = None
    counts: bool = False
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
    prediction: str = ""
    sharer: str = ""
    share: int = 1
    cold: bool = False
    repetition_stop: bool = False


class Embed(Message, frozen=True, tag="embed"):
    """Make a vector of each input. With a `query`, give each input a score instead: a number that
    says how well the input answers the query.

    `prompt_name` names a prompt of the model's files that goes before each input. `role` chooses
    such a prompt by its use; a model without prompts for roles uses no prompt. Inputs that are too
    long are refused, or cut to `truncate` tokens; -1 cuts them to the context. `dimensions` cuts
    vectors to so many numbers. `sharer` and `share` are as in `Generate`.
    """

    request_id: str
    inputs: tuple[TextPrompt | TokenPrompt, ...]
    priority: int = 0
    query: str | None = None
    prompt_name: str | None = None
    role: Literal["query", "document"] | None = None
    truncate: int | None = None
    dimensions: int | None = None
    sharer: str = ""
    share: int = 1


class Cancel(Message, frozen=True, tag="cancel"):
    """Drop a request. The worker ignores an unknown request, whose answer may have crossed this
    message.
    """

    request_id: str


# A request's task for a worker.
Task: TypeAlias = Generate | Embed
