"""The body of a request for a response, and its tools in the form of the other APIs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta, Raw, Struct

from gateway.http.generation.generation_body import (
    Effort,
    JsonSchemaBody,
    ResponseFormatBody,
    SamplingBody,
    TemplateBody,
    Tokens,
    Verbosity,
    check_limit,
)
from gateway.http.generation.supported_parameters import refusing
from gateway.http.generation.tools import (
    MODES,
    AllowedTool,
    AllowedTools,
    ChosenTool,
    NamedFunction,
    ToolBody,
    ToolChoiceBody,
    tools_of,
)
from gateway.http.openai.responses_conversation import BroughtTools
from gateway.http.openai.responses_items import (
    CallMeaning,
    ItemBody,
    Kind,
    Tool,
    described_tools,
    function_name,
    runs_here,
)
from gateway.http.wire.bodies import ABSENT, given
from gateway.http.wire.errors import invalid
from gateway.system.refusal import Refusal
from protocol.requests import ToolChoice, Tools

_LOGPROBS: Final = "message.output_text.logprobs"
_FUNCTION: Final = re.compile(r"tools\[(?P<index>[0-9]+)\]\.function")
_SEALED_REASONING: Final = "reasoning.encrypted_content"

Label = Annotated[str, Meta(max_length=64)]
Value = Annotated[str, Meta(max_length=512)]


class NamedTool(Struct, omit_defaults=True):
    type: str
    name: str | None = None


class ResponseToolChoice(Struct, omit_defaults=True):
    """A choice of one tool, or of some allowed tools."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[NamedTool] | None = None


class TextFormat(Struct, omit_defaults=True, rename={"schema_": "schema"}):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Raw = ABSENT
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningConfig(Struct):
    """`summary` is ignored: the reasoning itself is in the answer."""

    effort: Effort | None = None
    summary: str | None = None


class CacheOptions(Struct):
    """With `prewarm` the prompt is computed and kept, and there is no output. With
    `comparison_response_id` the response tells how its prompt differs from that of an earlier one.
    """

    prewarm: bool | None = None
    comparison_response_id: str | None = None


@refusing("responses")
class ResponseBody(SamplingBody, kw_only=True):
    input: str | list[ItemBody] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: Tokens | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: Annotated[dict[Label, Value], Meta(max_length=16)] | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: Raw = ABSENT
    prompt_cache_options: CacheOptions | None = None

    @property
    def prewarms(self) -> bool:
        return self.prompt_cache_options is not None and bool(self.prompt_cache_options.prewarm)

    @property
    def compares(self) -> str | None:
        """The id of the response to compare the prompt with; None: nothing is asked for."""
        options = self.prompt_cache_options
        return None if options is None else options.comparison_response_id

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def seals_reasoning(self) -> bool:
        return _SEALED_REASONING in (self.include or ())

    @property
    def choice(self) -> ToolChoice | ResponseToolChoice | None:
        """The choice of tools. A mode may come as an object, too."""
        choice = self.tool_choice
        return MODES.get(choice.type, choice) if isinstance(choice, ResponseToolChoice) else choice

    @property
    def logprobs(self) -> int | None:
        """The number of alternatives for each token. None: log probabilities are not wanted."""
        if _LOGPROBS in (self.include or ()) or self.top_logprobs:
            return self.top_logprobs or 0
        return None

    def generation(self) -> TemplateBody:
        """The parameters of this body under the names of chat."""
        same: dict[str, Any] = {
            name: getattr(self, name) for name in SamplingBody.__struct_fields__
        }
        return _Generation(
            **same,
            max_completion_tokens=self.max_output_tokens,
            response_format=_format(self.text),
            reasoning_effort=None if self.reasoning is None else self.reasoning.effort,
            verbosity=None if self.text is None else self.text.verbosity,
            enable_thinking=self.enable_thinking,
            chat_template_kwargs=self.chat_template_kwargs,
        )


class _Generation(TemplateBody, kw_only=True):
    @property
    def constraint_param(self) -> str:
        return "text.format"


def check_body(body: ResponseBody) -> None:
    """Raises: Refusal: fields of the body contradict each other."""
    check_limit(body.max_output_tokens, "max_output_tokens")
    if body.background and not body.stored:
        raise invalid(
            "background: a response must be stored to be fetched: leave store out.", "store"
        )


def tools(body: ResponseBody, brought: BroughtTools) -> Tools | None:
    """The tools of the body and of its items, for a worker. Tools that run at OpenAI are left out.

    Raises:
        Refusal: a tool is invalid, or the choice names an unknown tool.
    """
    offered = list(described_tools(body.tools or (), "tools"))
    names = {tool.function.name for tool in offered}
    added = {tool.function.name: tool for tool in [*brought.late, *brought.early]}
    offered += [tool for name, tool in added.items() if name not in names]
    early = names | {tool.function.name for tool in brought.early}
    try:
        return tools_of(
            [ToolBody(tool.function, "function") for tool in offered],
            _choice(body, [tool.meaning for tool in offered]),
            parallel=body.parallel_tool_calls is not False,
            mentioned=added.keys() - early,
        )
    except Refusal as refusal:

        def path(match: re.Match[str]) -> str:
            return offered[int(match["index"])].path

        # In this API a tool itself has the fields of its function, so the paths are shorter.
        refusal.message = _FUNCTION.sub(path, refusal.message)
        refusal.param = refusal.param and _FUNCTION.sub(path, refusal.param)
        raise


def _choice(body: ResponseBody, meanings: Sequence[CallMeaning]) -> ToolChoiceBody | None:
    """The choice of tools. A choice that demands a call is ignored, if the tool that it names, or
    each tool of the body, runs at OpenAI.
    """
    choice = body.choice
    elsewhere = {tool.type for tool in body.tools or () if not runs_here(tool)}
    match choice:
        case "required" if elsewhere and not meanings:
            return None
        case ResponseToolChoice(kind) if kind in elsewhere:
            return None
        case None | "auto" | "none" | "required":
            return choice
        case ResponseToolChoice("allowed_tools", _, mode, list() as asked):
            names = _named(asked, meanings)
            allowed = [AllowedTool(NamedFunction(name), "function") for name in names]
            return ChosenTool("allowed_tools", allowed_tools=AllowedTools(mode or "auto", allowed))
        case ResponseToolChoice() if named := _named(
            [NamedTool(choice.type, choice.name)], meanings
        ):
            return ChosenTool("function", NamedFunction(named[0]))
    raise invalid(
        "tool_choice: send auto, none, required, a tool of your own by its type and name, or "
        "allowed_tools.",
        "tool_choice",
    )


def _named(asked: Sequence[NamedTool], meanings: Sequence[CallMeaning]) -> list[str]:
    """The model's names for the tools in `asked`. Tools that run at OpenAI are left out."""
    names = []
    for tool in asked:
        if tool.type in get_args(Kind):
            name = tool.name or tool.type
            same = (function_name(m.namespace, m.name) for m in meanings if m.name == name)
            names.append(next(same, name))
    return names


def _format(text: TextConfig | None) -> ResponseFormatBody | None:
    if text is None or text.format is None:
        return None
    asked = text.format
    if asked.type == "json_schema" and not given(asked.schema_):
        raise invalid("text.format.schema is missing: send the schema.", "text.format.schema")
    schema = JsonSchemaBody(asked.name, asked.schema_, asked.strict, asked.description)
    return ResponseFormatBody(
        asked.type, schema if asked.type == "json_schema" else None, asked.schema_
    )
