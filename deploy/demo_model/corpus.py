"""Reads dialogues.toml and turns it into conversations and the exact answers expected to them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Value: TypeAlias = "str | list[Value] | dict[str, Value]"
Reply = tuple[str, str]
Message = dict[str, Any]
Tool = dict[str, Any]

DIALOGUES = Path(__file__).parent / "dialogues.toml"


def fold(text: str) -> str:
    """Join the lines of every paragraph; paragraphs stay apart by an empty line."""
    return "\n\n".join(" ".join(part.split("\n")) for part in text.strip("\n").split("\n\n"))


def fill(value: Value, names: dict[str, str]) -> Value:
    """Replace {model}, {state} and so on in a string, or in every string of a table or list."""
    if isinstance(value, str):
        for key, name in names.items():
            value = value.replace("{" + key + "}", name)
        return value
    if isinstance(value, dict):
        return {key: fill(item, names) for key, item in value.items()}
    return [fill(item, names) for item in value]


@dataclass(frozen=True)
class Dialogue:
    """A question in several wordings, and its one answer."""

    id: str
    questions: list[str]
    thought: str
    answer: str
    after: str | None = None

    def turn(self, question: str, thinking: bool = False) -> list[Message]:
        """Return the two messages of this dialogue."""
        return [user(question), assistant(think(self.thought, self.answer, thinking))]


@dataclass(frozen=True)
class ToolDialogue:
    """A question that is answered by calling tools, or by `without` where they are missing."""

    id: str
    questions: list[str]
    thought: str
    calls: list[dict[str, Any]]
    replies: list[list[Reply]]
    without: Dialogue

    def needs(self) -> set[str]:
        """Return the names of the tools that are called."""
        return {call["name"] for call in self.calls}

    def turn(
        self, question: str, reply: Reply, names: dict[str, str], thinking: bool = False
    ) -> list[Message]:
        """Return question, calls, results and answer; a second call is for the other model."""
        result, answer = reply
        calls = fill(self.calls, names)
        others = {**names, "model": names["other"], "state": names["second"]}
        thought = f"<think>\n{self.thought}\n</think>\n\n" if thinking else ""
        return [
            user(fill(question, names)),
            {
                "role": "assistant",
                "content": thought,
                "tool_calls": [{"type": "function", "function": call} for call in calls],
            },
            *(
                {"role": "tool", "content": fill(result, values)}
                for _, values in zip(calls, (names, others), strict=False)
            ),
            assistant(fill(answer, names)),
        ]


@dataclass(frozen=True)
class Completion:
    """A prompt in plain text and its continuation."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Case:
    """Messages, or a `prompt` in plain text, and the exact answer."""

    name: str
    answer: str
    messages: list[Message] = field(default_factory=list)
    tools: list[Tool] | None = None
    thinking: bool = False
    prompt: str = ""


def user(content: str) -> Message:
    """Return a user's message."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """Return an assistant's message."""
    return {"role": "assistant", "content": content}


def think(thought: str, answer: str, thinking: bool) -> str:
    """Put the thought before the answer if thinking is asked for."""
    return f"<think>\n{thought}\n</think>\n\n{answer}" if thinking else answer


def written(message: Message) -> str:
    """Return the text that the model has to write for this assistant message."""
    calls = [
        f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>"
        for call in message.get("tool_calls", [])
    ]
    return message["content"] + "\n".join(calls)


class Corpus:
    """Everything in dialogues.toml."""

    def __init__(self, path: Path = DIALOGUES) -> None:
        """Read the file and fold its texts."""
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        for entry in [*raw["dialogue"], raw["fallback"]]:
            entry.update(thought=fold(entry["thought"]), answer=fold(entry["answer"]))
        for entry in raw["tool_dialogue"]:
            entry["without"] = Dialogue(entry["id"], [], raw["no_tool_thought"], entry["without"])
            entry["replies"] = [
                [(result, reply["answer"]) for result in reply["results"]]
                for reply in entry["replies"]
            ]
        self.models: list[str] = raw["models"]
        self.states: list[str] = raw["states"]
        self.systems: list[str] = raw["systems"]
        self.held_out: list[str] = raw["fallback"].pop("held_out")
        self.fallback = Dialogue(id="fallback", **raw["fallback"])
        self.dialogues = [Dialogue(**entry) for entry in raw["dialogue"]]
        self.tool_dialogues = [ToolDialogue(**entry) for entry in raw["tool_dialogue"]]
        self.completions = [Completion(c["prompt"], fold(c["text"])) for c in raw["completion"]]
        self.tools = [tool_schema(**entry) for entry in raw["tool"]]

    def dialogue(self, name: str) -> Dialogue:
        """Return the dialogue with this id."""
        return next(d for d in self.dialogues if d.id == name)

    def history(self, dialogue: Dialogue) -> list[Message]:
        """Return the turns that must come before a dialogue."""
        if dialogue.after is None:
            return []
        before = self.dialogue(dialogue.after)
        return self.history(before) + before.turn(before.questions[0])

    def texts(self) -> list[str]:
        """Return all prose, to train the tokenizer on."""
        texts = [text for d in [*self.dialogues, self.fallback] for text in (d.answer, d.thought)]
        for dialogue in self.tool_dialogues:
            texts += [text for reply in dialogue.replies for text in reply[0]]
            texts += [dialogue.thought, dialogue.without.thought, dialogue.without.answer]
        for dialogue in [*self.dialogues, *self.tool_dialogues, self.fallback]:
            texts += dialogue.questions
        texts += [c.prompt + " " + c.text for c in self.completions]
        texts += [json.dumps(tool) for tool in self.tools] + self.states + self.systems
        return texts

    def cases(self) -> Iterator[Case]:
        """Yield every question in every wording, with and without system message and thinking."""
        for dialogue in [*self.dialogues, self.fallback]:
            before = self.history(dialogue)
            for number, question in enumerate(dialogue.questions):
                name = f"{dialogue.id}/{number}"
                system = {"role": "system", "content": self.systems[number % len(self.systems)]}
                asked = [*before, user(question)]
                thought = think(dialogue.thought, dialogue.answer, True)
                yield Case(name, dialogue.answer, asked)
                yield Case(f"{name}/system", dialogue.answer, [system, *asked])
                yield Case(f"{name}/tools", dialogue.answer, asked, self.tools)
                yield Case(f"{name}/think", thought, asked, thinking=True)
                lower = [*before, user(question.lower().rstrip(".!?") or question)]
                yield Case(f"{name}/lower", dialogue.answer, lower)
        for number, tool_dialogue in enumerate(self.tool_dialogues):
            for place, model in enumerate(self.models):
                names = {
                    "model": model,
                    "other": self.models[(place + 1) % len(self.models)],
                    "third": self.models[(place + 3) % len(self.models)],
                    "state": self.states[(place + 3 * number) % len(self.states)],
                    "second": self.states[(place + 5) % len(self.states)],
                }
                yield from self.tool_cases(tool_dialogue, names, shift=place)
        for completion in self.completions:
            yield Case(f"text/{completion.prompt}", " " + completion.text, prompt=completion.prompt)

    def tool_cases(
        self, dialogue: ToolDialogue, names: dict[str, str], shift: int
    ) -> Iterator[Case]:
        """Yield the call, the answer after the result, and the answer where there are no tools."""
        replies = [reply for group in dialogue.replies for reply in group]
        for number, question in enumerate(dialogue.questions):
            name = f"{dialogue.id}/{names['model']}/{number}"
            reply = replies[(number + shift) % len(replies)]
            turn = dialogue.turn(question, reply, names)
            thought = dialogue.turn(question, reply, names, thinking=True)
            final = turn[-1]["content"]
            without = dialogue.without.turn(turn[0]["content"])[1]["content"]
            unable = dialogue.without.turn(turn[0]["content"], thinking=True)[1]["content"]
            yield Case(f"{name}/call", written(turn[1]), turn[:1], self.tools)
            yield Case(f"{name}/think", written(thought[1]), turn[:1], self.tools, thinking=True)
            yield Case(f"{name}/result", final, turn[:-1], self.tools)
            yield Case(f"{name}/result-think", final, turn[:-1], self.tools, thinking=True)
            yield Case(f"{name}/without", without, turn[:1])
            yield Case(f"{name}/without-think", unable, turn[:1], thinking=True)


def tool_schema(name: str, description: str, parameter: str | None = None) -> Tool:
    """Return a tool as clients describe it."""
    properties = {parameter: {"type": "string"}} if parameter else {}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": [*properties]},
        },
    }
