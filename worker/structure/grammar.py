"""Grammars for llguidance: of a client's constraint, and of the calls of tools that each family of
models writes. `constraints` compiles them, and `sampler` makes a mask of tokens from them for each
step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from llguidance import LLMatcher

from protocol.requests import Constraint, Tools

# A regular expression in Lark ends at a slash that isn't escaped.
_SLASH: Final = re.compile(r"(?<!\\)((?:\\\\)*)/")
_BACKSLASH: Final = r"\1\/"
# The most characters of a constraint. Even the reading of a longer one would take too long.
_LONGEST_SOURCE: Final = 1 << 18
# llguidance's warnings about keywords that it doesn't enforce.
_KEYS: Final = re.compile(r"Unimplemented keys: (\[.*\])")
_FORMAT: Final = re.compile(r"Unknown format: (.*)")
_ANY_OBJECT: Final = '{"type":"object"}'
# Whitespace has a bound, since some models would write nothing else.
_WHITESPACE: Final = "( |\\n[ \\t]{0,40})?"
_LONGEST_REASON: Final = 500
_ONE_OF_ADVICE: Final = "Enable 'coerce_one_of' option to approximate oneOf with anyOf"
# The beginning of a line that llguidance quotes from the grammar, with its number.
_QUOTED: Final = re.compile(r" +\d+ \| ")


class ConstraintError(Exception):
    """An answer can't be made to match a constraint. `reason` is for the client."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def grammar_of(constraint: Constraint) -> str:
    """The grammar of a client's constraint, in llguidance's form.

    Raises:
        ConstraintError: the constraint is too long, or can't be read as its kind.
    """
    source = constraint.source
    if len(source) > _LONGEST_SOURCE:
        raise ConstraintError(
            f"It has {len(source)} characters, and may have {_LONGEST_SOURCE} at most."
        )
    match constraint.kind:
        case "json_object":
            return json_grammar(_ANY_OBJECT)
        case "json_schema":
            return json_grammar(source, whole=constraint.whole)
        case "regex":
            return LLMatcher.grammar_from_regex(source)
        case "grammar":
            return LLMatcher.grammar_from_lark(source)
        case "choice":
            return LLMatcher.grammar_from_lark(_choice(source))


def lark_rule(constraint: Constraint) -> str:
    """A client's constraint as the right side of a rule in Lark, for a grammar with other rules.

    Raises:
        ConstraintError: the constraint has rules of its own, or can't be read as its kind.
    """
    source = constraint.source
    match constraint.kind:
        case "json_object":
            schema: object = json.loads(_ANY_OBJECT)
        case "json_schema":
            try:
                schema = json.loads(source)
            except (ValueError, RecursionError) as error:
                raise ConstraintError(f"The schema can't be read: {error}.") from error
        case "regex":
            return f"/{_SLASH.sub(_BACKSLASH, source)}/"
        case "choice":
            return _choice(source).removeprefix("start: ")
        case "grammar":
            raise ConstraintError("a grammar can't be had beside tools: send one of them")
    if not isinstance(schema, dict):
        return f"%json {json.dumps(schema)}"
    return f"%json {json.dumps({**schema, 'x-guidance': json_options(whole=constraint.whole)})}"


def json_options(*, whole: bool) -> dict[str, Any]:
    """The options with which llguidance compiles a schema. They override options in the schema.
    With `whole` a schema is refused for a keyword that can't be enforced; otherwise the keyword is
    left out.
    """
    return {"whitespace_pattern": _WHITESPACE, "lenient": not whole, "coerce_one_of": not whole}


def unenforced(matcher: LLMatcher) -> tuple[str, ...]:
    """The names of the keywords in a grammar's schemas that llguidance doesn't enforce."""
    names: dict[str, None] = {}
    for warning in matcher.get_grammar_warnings():
        if keys := _KEYS.search(warning):
            names.update(dict.fromkeys(re.findall(r'"([^"]+)"', keys[1])))
        elif format_ := _FORMAT.search(warning):
            names[f"format {format_[1]}"] = None
        elif "oneOf" in warning:
            names["oneOf (taken as anyOf)"] = None
        elif "min/maxProperties" in warning:
            names.update({"minProperties": None, "maxProperties": None})
        else:
            names[warning] = None
    return tuple(names)


def json_grammar(schema: str, *, whole: bool = True) -> str:
    """The grammar of a JSON schema.

    Raises:
        ConstraintError: the schema is no JSON object.
    """
    options: Any = json_options(whole=whole)
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=options)
    except ValueError as error:
        raise ConstraintError(f"The schema can't be read: {error}.") from error


def quoted(text: str) -> str:
    """A text as a string in Lark, with quotation marks."""
    return json.dumps(text, ensure_ascii=False)


def _choice(source: str) -> str:
    try:
        texts = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"The choices can't be read: {error}.") from error
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ConstraintError("The choices must be a list of texts, one at least.")
    return "start: " + " | ".join(map(quoted, dict.fromkeys(texts)))


_NAME: Final = "{name}"
_ARGUMENTS: Final = "{arguments}"
_NUMBER: Final = "{number}"
_ANY: Final = "{any}"
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class CallForm:
    """How a family writes a block of calls: `open`, calls with `between` between them, `close`. A
    `call` without `_ARGUMENTS` is only the beginning of a call, whose arguments are no JSON and not
    constrained. A form with a `thought` has only one call, and the thought may come before it.
    """

    call: str
    open: str = ""
    between: str = ""
    close: str = ""
    thought: str = ""

    @property
    def is_bare(self) -> bool:
        """Whether calls have no tag, and look like any other answer in JSON."""
        return (self.open or self.call).startswith("{")


def _object(key: str = "arguments", name: str = "name") -> str:
    return f'{{"{name}": "{_NAME}", "{key}": {_ARGUMENTS}}}'


def _list(open_: str, close: str, call: str) -> CallForm:
    return CallForm(call, f"{open_}[", ", ", f"]{close}")


_FORMS: Final[Mapping[str, CallForm]] = {
    "hermes": CallForm(f"<tool_call>\n{_object()}\n</tool_call>", between="\n"),
    "llama3": CallForm(_object("parameters"), between="; "),
    "mistral": _list("[TOOL_CALLS]", "", _object()),
    "granite": _list("<|tool_call|>", "", _object()),
    "phi4": _list("<|tool_call|>", "<|/tool_call|>", _object()),
    "nemotron": _list("<TOOLCALL>", "</TOOLCALL>", _object()),
    "command": _list(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        f'{{"tool_call_id": "{_NUMBER}", {_object("parameters", "tool_name")[1:]}',
    ),
    "internlm": CallForm(f"<|action_start|><|plugin|>\n{_object('parameters')}<|action_end|>"),
    "hunyuan": CallForm(
        f"<tool_call>{_NAME}\n```json\n{_ARGUMENTS}\n```</tool_call>",
        "<tool_calls>",
        "",
        "</tool_calls>",
    ),
    "kimi_k2": CallForm(
        f"<|tool_call_begin|>functions.{_NAME}:{_NUMBER}<|tool_call_argument_begin|>{_ARGUMENTS}"
        "<|tool_call_end|>",
        "<|tool_calls_section_begin|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    "deepseek": CallForm(
        f"<｜tool▁call▁begin｜>{_NAME}<｜tool▁sep｜>{_ARGUMENTS}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>",
        "",
        "<｜tool▁calls▁end｜>",
    ),
    # A message of harmony is one call, and the end of the message is the end of the answer.
    "harmony": CallForm(
        f"<|channel|>commentary to=functions.{_NAME} <|constrain|>json<|message|>{_ARGUMENTS}"
        "<|call|>",
        thought=f"<|channel|>analysis<|message|>{_ANY}<|end|><|start|>assistant",
    ),
    # The families from here on write arguments in other forms than JSON.
    "qwen3_coder": CallForm(f"<tool_call>\n<function={_NAME}>\n"),
    "seed_oss": CallForm(f"<seed:tool_call>\n<function={_NAME}>\n"),
    "glm47": CallForm(f"<tool_call>{_NAME}\n"),
    "laguna": CallForm(f"<tool_call>{_NAME}\n"),
    "longcat": CallForm(f"<longcat_tool_call>{_NAME}\n"),
    "muse_spark": CallForm(f'<atem:function_calls>\n<atem:invoke name="{_NAME}">'),
    "minicpm5": CallForm(f'<function name="{_NAME}">'),
    "kimi_k3": CallForm(f'<|open|>tools<|sep|><|open|>call tool="{_NAME}" index="1"<|sep|>'),
    "minimax_m2": CallForm(f'<minimax:tool_call>\n<invoke name="{_NAME}">'),
    "deepseek_v32": CallForm(f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="{_NAME}">'),
    "pythonic": CallForm(f"<|tool_call_start|>[{_NAME}("),
    "llama4": CallForm(f"<|python_start|>[{_NAME}("),
    "olmo3": CallForm(f"<function_calls>{_NAME}("),
    "gemma4": CallForm(f"<|tool_call>call:{_NAME}{{"),
    "function_gemma": CallForm(f"<start_function_call>call:{_NAME}{{"),
}
# The beginning of harmony's final message, which has the text for the user.
_FINAL: Final = "<|channel|>final<|message|>"
_TAG: Final = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_REST: Final = r"REST: /(.|\n)+/"
_HOLES: Final = {_ARGUMENTS: "", _NUMBER: "/[0-9]{1,3}/", _ANY: "REST"}
# Other forms of a family, for models whose vocabulary or template shows them.
_MISTRAL_HEADED: Final = CallForm(f"[TOOL_CALLS]{_NAME}[ARGS]{_ARGUMENTS}")
_DEEPSEEK_FENCED: Final = CallForm(
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{_NAME}\n```json\n{_ARGUMENTS}\n```"
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "\n",
    "<｜tool▁calls▁end｜>",
)


class ToolGrammar(NamedTuple):
    """A grammar in Lark, and the form of it that the trial compiles. The trial's tokenizer has no
    special tokens: `tried` has their texts as plain text.
    """

    grammar: str
    tried: str


class Function(NamedTuple):
    name: str
    schema: dict[str, Any]
    strict: bool
    whole: bool


def form_of(family: str, template: str, special: Mapping[str, int]) -> CallForm | None:
    """How a model writes calls, by its family, template and special tokens; None: unknown."""
    if family == "mistral" and "[ARGS]" in special:
        return _MISTRAL_HEADED
    if family == "deepseek" and "```json" in template:
        return _DEEPSEEK_FENCED
    return _FORMS.get(family)


def functions_of(tools: Tools) -> list[Function]:
    """The functions that may be called.

    Raises:
        ConstraintError: no function may be called.
    """
    functions = []
    for tool in tools.known:
        function = tool.get("function", tool)
        if tools.name is not None and function["name"] != tools.name:
            continue
        schema = function.get("parameters")
        functions.append(
            Function(
                function["name"],
                _NO_PARAMETERS if schema is None else {"type": "object", **schema},
                bool(function.get("strict")),
                bool(function.get("strict")) and tools.whole,
            )
        )
    if not functions:
        raise ConstraintError("there is no function to call")
    return functions


def forced_calls(
    form: CallForm,
    functions: list[Function],
    special: Mapping[str, int],
    *,
    parallel: bool,
    answer: str | None = None,
) -> ToolGrammar:
    """A grammar of calls and nothing else, or of calls or an `answer`, the right side of a rule in
    Lark. Harmony's thought is a message like a call, and may come before either.
    """
    instead = "" if answer is None else " | answer"

    def lines(known: Mapping[str, int]) -> Iterator[str]:
        if answer is not None:
            begin = _sequence(_FINAL, known) if form.thought else ""
            yield f"answer: {begin} said"
            yield f"said: {answer}"
        if _ARGUMENTS not in form.call:
            yield (
                f"start: calls (REST | other)*{instead}"
                if known
                else f"start: calls REST?{instead}"
            )
            yield f"calls: {_any_call(functions)}"
            if known:
                yield f"other: {_any_token(known)}"
            yield _REST
        elif form.thought:
            yield f"start: thought? (calls{instead})"
            yield f"calls: {_any_call(functions)}"
            yield f"thought: {_sequence(form.thought, known)}"
            yield _REST
        else:
            yield f"start: {_block(form, functions, known, parallel=parallel)}{instead}"
        yield from _rules(form, functions, known)

    return ToolGrammar("\n".join(lines(special)), "\n".join(lines({})))


def possible_calls(
    form: CallForm, functions: list[Function], special: Mapping[str, int], *, parallel: bool
) -> ToolGrammar | None:
    """A grammar of any text, with calls in it that follow their schemas. None: calls of this form
    have no tag, no arguments in JSON, or are whole messages.
    """
    begin = _TAG.match(form.open or form.call)
    if begin is None or _ARGUMENTS not in form.call or form.thought:
        return None
    tag = begin.group()

    def lines(known: Mapping[str, int]) -> Iterator[str]:
        others = {text: token_id for text, token_id in known.items() if text != tag}
        if tag in known:
            yield f"start: (REST | {_sequence(tag, known)} block{' | other' if others else ''})*"
        else:
            # The text after the tag is constrained.
            yield f"start: (head block{' | REST other' if others else ''})* REST?"
            yield f"head[lazy]: /(.|\\n)*/ {quoted(tag)}"
        if others:
            yield f"other: {_any_token(others)}"
        yield f"block: {_block(form, functions, known, parallel=parallel, without=tag)}"
        yield _REST
        yield from _rules(form, functions, known)

    return ToolGrammar("\n".join(lines(special)), "\n".join(lines({})))


def _block(
    form: CallForm,
    functions: list[Function],
    special: Mapping[str, int],
    *,
    parallel: bool,
    without: str = "",
) -> str:
    """One block of calls, in Lark. The rule before it has the block's first tag, `without`."""
    parts = [_sequence(form.open.removeprefix(without), special)]
    if form.open or not without:
        parts.append(f"({_any_call(functions)})")
    else:
        # Each call has a tag of its own. The rule before this one has the first call's tag.
        parts.append(f"({_any_call(functions, 'rest')})")
    if parallel:
        parts.append(f"({_sequence(form.between, special)} ({_any_call(functions)}))*")
    parts.append(_sequence(form.close, special))
    return " ".join(part for part in parts if part)


def _any_call(functions: list[Function], name: str = "call") -> str:
    return " | ".join(f"{name}{index}" for index in range(len(functions)))


def _rules(form: CallForm, functions: list[Function], special: Mapping[str, int]) -> Iterator[str]:
    begin = _TAG.match(form.call)
    for index, function in enumerate(functions):
        call = form.call.replace(_NAME, function.name)
        yield f"call{index}: {_sequence(call, special, f'arguments{index}')}"
        if begin is not None and not form.open:
            yield f"rest{index}: {_sequence(call[begin.end() :], special, f'arguments{index}')}"
        if _ARGUMENTS in call:
            options = json_options(whole=function.whole)
            schema = json.dumps({**function.schema, "x-guidance": options})
            yield f"arguments{index}: %json {schema}"


def _sequence(text: str, special: Mapping[str, int], arguments: str = "") -> str:
    """A text in Lark: special tokens, strings, and rules in place of the text's holes."""
    parts = [re.escape(token) for token in sorted(special, key=len, reverse=True)]
    pieces = re.split(f"({'|'.join([*map(re.escape, _HOLES), *parts])})", text)
    written = []
    for piece in pieces:
        if piece == _ARGUMENTS:
            written.append(arguments)
        elif piece in _HOLES:
            written.append(_HOLES[piece])
        elif piece in special:
            written.append(f"<[{special[piece]}]>")
        elif piece:
            written.append(quoted(piece))
    return " ".join(written)


def _any_token(special: Mapping[str, int]) -> str:
    """Any one of the special tokens, in Lark, as ranges of ids."""
    ids = sorted(set(special.values()))
    begins = [token_id for token_id in ids if token_id - 1 not in special.values()]
    ends = [token_id for token_id in ids if token_id + 1 not in special.values()]
    ranges = [f"{begin}-{end}" for begin, end in zip(begins, ends, strict=True)]
    return f"<[{','.join(ranges)}]>"


def one_line(reason: str) -> str:
    """The error in llguidance's message, without the lines of the grammar that it quotes."""
    lines = reason.replace("<non-verbose/>", "").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    quoted = [number for number, line in enumerate(lines) if _QUOTED.match(line)]
    text = " ".join(" ".join(errors or lines[: quoted[0] if quoted else None]).split())
    # llguidance's advice names an option that clients don't have.
    text = text.replace(_ONE_OF_ADVICE, "Send anyOf, or options that differ in type or a const")
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
