"""The command line knows each `bulkhead` line of the documents and of the product's own texts.

No line is run here, so those that need a Mac, another machine or minutes are checked, too.
tests/docs/test_commands.py runs the blocks that `fences.EXCUSES` doesn't except.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gateway.cli import main
from tests.docs.fences import OTHER_PAGES, PAGES, ROOT, Fence
from tests.docs.test_typed_commands import BASH, SPAN, TYPED, _calls, _place

CALL = re.compile(r"<bulkhead>((?:<[^<>]*>)*)")
# What a page writes for something of the reader's own.
OWN = {"AGENT": "claude", "WORDS": "llama"}
FENCES = [fence for fence in TYPED if "bulkhead" in fence.text]


def _parse(arguments: list[str]) -> None:
    """Parse a command line as the command does, and don't run it.

    Raises:
        click.UsageError: it has no such verb, option or value.
    """
    command: click.Command = main
    name, parent = "bulkhead", None
    while True:
        context = command.make_context(name, list(arguments), parent=parent)
        if not isinstance(command, click.Group):
            return
        arguments = [*context._protected_args, *context.args]
        found, inner, arguments = command.resolve_command(context, arguments)
        assert found is not None
        assert inner is not None
        name, command, parent = found, inner, context


def _wrong(arguments: list[str], *, may_lack: bool = False) -> str | None:
    try:
        _parse([OWN.get(argument, argument) for argument in arguments])
    except click.exceptions.Exit:
        return None
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError) as error:
        return None if may_lack else error.format_message()
    except click.UsageError as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("fence", FENCES, ids=_place)
def test_the_lines_of_a_block(fence: Fence, tmp_path: Path) -> None:
    """As bash calls them; zsh calls the same, says tests/docs/test_typed_commands.py."""
    (tmp_path / "config.toml").touch()
    calls = [found for call in _calls(BASH, fence.text, tmp_path) for found in CALL.findall(call)]
    wrong = {call: _wrong(re.findall(r"<([^<>]*)>", call)) for call in calls}
    assert {item: why for item, why in wrong.items() if why} == {}


def _spans() -> Iterator[tuple[Path, str]]:
    """Lines in sentences, also those of texts of the product, which may go over a line's end."""
    for page in (*PAGES, *OTHER_PAGES, *sorted((ROOT / "gateway").rglob("*.py"))):
        text = re.sub(r'"\n\s+f?"', "", page.read_text("utf-8"))
        for span in SPAN.findall(text):
            if span.startswith("bulkhead ") and not re.search(r"[{]|\.\.\.", span):
                yield page, re.sub(r"\[(\W*)([A-Z]+)\]", r"\1\2", span.replace("\\|", "|"))


def test_the_lines_within_sentences() -> None:
    """One may name a verb alone, without what it needs."""
    spans = set(_spans())
    assert len(spans) > 100
    wrong = [
        (place.name, span, why)
        for place, span in sorted(spans)
        if (why := _wrong(shlex.split(span.split(" | ")[0])[1:], may_lack=True))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line", ["lod demo", "load", "load --prority 3 demo", "key ad desk", "logs -n many", "show a b"]
)
def test_a_line_that_is_wrong_is_found(line: str) -> None:
    assert _wrong(line.split())
