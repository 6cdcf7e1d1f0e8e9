"""From a constraint as its client wrote it to the text that llguidance compiles."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher

from protocol.requests import Constraint

if TYPE_CHECKING:
    # A name for type checkers alone.
    from llguidance._lib import JsonCompileOptions

# Lark's expressions end at a slash that stands alone.
_SLASH: Final = re.compile(r"(?<!\\)((?:\\\\)*)/")
_BACKSLASH: Final = r"\1\/"
# In characters. What is longer takes too long to read alone.
_LONGEST_SOURCE: Final = 1 << 18
# llguidance's words for what it leaves out.
_KEYS: Final = re.compile(r"Unimplemented keys: (\[.*\])")
_FORMAT: Final = re.compile(r"Unknown format: (.*)")
_ANY_OBJECT: Final = '{"type":"object"}'
# A schema may say how it is to be compiled, and what it may leave undone: these come after that.
# Whitespace has a bound, since some models would write nothing else.
_JSON_OPTIONS: Final[JsonCompileOptions] = {
    "whitespace_pattern": "( |\\n[ \\t]{0,40})?",
}


class ConstraintError(Exception):
    """Why an answer can't be made to match, in a sentence for its client."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def grammar_of(constraint: Constraint) -> str:
    """
    Raises:
        ConstraintError: it is too long, or not of its kind.
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
    """The same as what stands behind the name of a rule, in a grammar that has other rules.

    Raises:
        ConstraintError: it has rules of its own, or is not of its kind.
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


def json_options(*, whole: bool) -> JsonCompileOptions:
    """What can't be enforced is refused if a schema is to be had `whole`, else left out."""
    return {**_JSON_OPTIONS, "lenient": not whole, "coerce_one_of": not whole}


def unenforced(matcher: LLMatcher) -> tuple[str, ...]:
    """What of the schemas in a grammar was left out, each by its name."""
    found: dict[str, None] = {}
    for warning in matcher.get_grammar_warnings():
        if keys := _KEYS.search(warning):
            found.update(dict.fromkeys(re.findall(r'"([^"]+)"', keys[1])))
        elif format_ := _FORMAT.search(warning):
            found[f"format {format_[1]}"] = None
        elif "oneOf" in warning:
            found["oneOf (taken as anyOf)"] = None
        elif "min/maxProperties" in warning:
            found.update({"minProperties": None, "maxProperties": None})
        else:
            found[warning] = None
    return tuple(found)


def json_grammar(schema: str, *, whole: bool = True) -> str:
    """
    Raises:
        ConstraintError: it is no JSON object.
    """
    try:
        return LLMatcher.grammar_from_json_schema(schema, overrides=json_options(whole=whole))
    except ValueError as error:
        raise ConstraintError(f"The schema can't be read: {error}.") from error


def quoted(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def _choice(source: str) -> str:
    try:
        texts = json.loads(source)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"The choices can't be read: {error}.") from error
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise ConstraintError("The choices must be a list of texts, one at least.")
    return "start: " + " | ".join(map(quoted, dict.fromkeys(texts)))
