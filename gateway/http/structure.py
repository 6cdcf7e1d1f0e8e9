"""What an answer's text must match, in the words of OpenAI's bodies and vLLM's."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.bodies import ABSENT, NOT_GIVEN, given
from gateway.http.sampling import GenerationBody
from gateway.system.refusal import Refusal
from protocol.requests import Constraint

_MOST_CHARACTERS: Final = 1 << 18

_NAMES: Final = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)

Pattern = Annotated[str, Meta(min_length=1)]
Choices = Annotated[list[str], Meta(min_length=1)]


class JsonSchemaBody(Struct, rename={"schema_": "schema"}):
    name: str | None = None
    schema_: Raw = ABSENT
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct, rename={"schema_": "schema"}):
    """The schema may stand beside `json_object`, as llama.cpp has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None
    schema_: Raw = ABSENT


class StructuredOutputs(Struct):
    """vLLM's."""

    json: Raw = ABSENT
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None


class StructuredBody(GenerationBody, kw_only=True):
    """vLLM has the same by two sets of names."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Raw = ABSENT
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None

    @property
    def constraint_param(self) -> str:
        found = [name for name in _NAMES if getattr(self, name) not in (None, NOT_GIVEN)]
        return found[-1] if found else super().constraint_param


def constraint_of(body: StructuredBody) -> Constraint | None:
    """Raises: Refusal: there are several, or one is too large or no schema."""
    found = {
        "response_format": _of_format(body.response_format),
        "structured_outputs": _of_outputs(body.structured_outputs),
        "guided_json": _schema(body.guided_json, "guided_json"),
        "guided_regex": body.guided_regex and Constraint("regex", body.guided_regex),
        "guided_choice": body.guided_choice and _choice(body.guided_choice),
        "guided_grammar": body.guided_grammar and Constraint("grammar", body.guided_grammar),
    }
    asked = [(name, each) for name, each in found.items() if each]
    if len(asked) > 1:
        raise _refusal(f"{asked[0][0]} and {asked[1][0]}: send one of them.", asked[1][0])
    for name, each in asked:
        if len(each.source) > _MOST_CHARACTERS:
            raise _refusal(
                f"{name} has {len(each.source):,} characters, of {_MOST_CHARACTERS:,} at most.",
                name,
            )
        return each
    return None


def _of_format(body: ResponseFormat | None) -> Constraint | None:
    match body:
        case ResponseFormat("json_object", schema_=schema):
            return _object(schema, "response_format.schema")
        case ResponseFormat("json_schema", JsonSchemaBody(schema_=schema)) if given(schema):
            return _schema(schema, "response_format.json_schema.schema")
        case ResponseFormat("json_schema"):
            raise _refusal(
                "response_format.json_schema.schema is missing: send the schema.",
                "response_format.json_schema.schema",
            )
        case _:
            return None


def _object(raw: Raw, name: str) -> Constraint:
    """A schema that says no type is that of an object here."""
    schema = _schema(raw, name)
    if schema is None:
        return Constraint("json_object")
    try:
        fields = msgspec.json.decode(schema.source, type=dict[str, Raw])
    except msgspec.DecodeError as error:
        raise _refusal(f"{name} can't be read: {error}.", name) from error
    fields.setdefault("type", Raw(b'"object"'))
    return Constraint("json_schema", msgspec.json.encode(fields).decode())


def _of_outputs(body: StructuredOutputs | None) -> Constraint | None:
    if body is None:
        return None
    found = [
        _schema(body.json, "structured_outputs.json"),
        Constraint("regex", body.regex) if body.regex else None,
        _choice(body.choice) if body.choice else None,
        Constraint("grammar", body.grammar) if body.grammar else None,
        Constraint("json_object") if body.json_object else None,
    ]
    asked = [each for each in found if each is not None]
    if len(asked) != 1:
        raise _refusal(
            "structured_outputs: send one of json, regex, choice, grammar and json_object.",
            "structured_outputs",
        )
    return asked[0]


def _choice(texts: list[str]) -> Constraint:
    return Constraint("choice", msgspec.json.encode(texts).decode())


def _schema(raw: Raw, name: str) -> Constraint | None:
    """An object; vLLM also takes it as text."""
    if not given(raw):
        return None
    text = bytes(raw).decode()
    if text.lstrip().startswith('"'):
        text = msgspec.json.decode(raw, type=str)
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _refusal(f"{name}: the text is not JSON: {error}.", name) from error
    if not text.lstrip().startswith("{"):
        raise _refusal(f"{name}: a JSON schema is an object.", name)
    return Constraint("json_schema", text)


def _refusal(message: str, param: str) -> Refusal:
    return Refusal("invalid_request_error", message, param=param)
