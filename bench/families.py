"""`python -m bench.families`: what this server can do with each architecture of mlx-lm and mlx-vlm.

Each is tried on a small model of random weights, in a process of its own, since some end their
process. An answer is right if it has the library's own likeliest tokens, or others whose logits
are as large but for rounding.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import textwrap
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, TypeAlias

import mlx.core as mx

from bench.family import CASES, LIBRARIES, YES, try_architecture
from tests.support.architectures import WITHOUT_SHAPE
from tests.support.vlm_architectures import WITHOUT_VLM_SHAPE

_DEADLINE_S: Final = 60.0
_JOBS: Final = 2
_WIDTH: Final = 100
_MADE: Final = "`python -m bench.families --page` writes this page."
_PAGE: Final = Path(__file__).parent.parent / "docs" / "architectures.md"
_HEADS: Final = {
    "loads": "loads",
    "same": "same text",
    "batch": "in a batch",
    "cached": "from the prompt cache",
    "resumed": "after a cut",
    "guesses": "with guesses",
    "pictures": "pictures",
}
_WITHOUT: Final = {"mlx-lm": WITHOUT_SHAPE, "mlx-vlm": WITHOUT_VLM_SHAPE}
_LEGEND: Final = """\
Each architecture was tried on a small model of random weights. *Loads*: it can be served. *Same
text*: the answers to two prompts, one after the other, have the library's own 16 likeliest tokens.
*In a batch*: so have answers that are computed together. *From the prompt cache*: so has an answer
to a prompt that was found there. *After a cut*: so have answers that are cut and go on. *With
guesses*: so have answers some of whose tokens are guessed. *Pictures*: it has a part that makes
embeddings of pictures. No picture was shown to it. Numbers stand for the reasons below. `≈`: tokens
differ where two were as likely but for rounding.
"""

_Results: TypeAlias = dict[str, dict[str, dict[str, str]]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.families", description=__doc__)
    parser.add_argument("--library", choices=LIBRARIES, help="only this one's")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these architectures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there")
    parser.add_argument("--page", action="store_true", help=f"write docs/{_PAGE.name}")
    parsed = parser.parse_args()
    wanted = [
        (library, name)
        for library, configs in LIBRARIES.items()
        for name in sorted(configs, key=str.lower)
        if parsed.library in {None, library} and (not parsed.only or name in parsed.only)
    ]
    with ThreadPoolExecutor(_JOBS) as jobs:
        tried = jobs.map(lambda pair: _try_in_a_process(*pair), wanted)
        results: _Results = {library: {} for library, _ in wanted}
        for (library, name), found in zip(wanted, tried, strict=True):
            results[library][name] = found
    if parsed.json is not None:
        parsed.json.write_text(json.dumps(results, indent=1))
    page = _page(results)
    if parsed.page:
        _PAGE.write_text(page, "utf-8")
    print(page)
    return 0


def _try_in_a_process(library: str, name: str) -> dict[str, str]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.family"])
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(writer, library, name), daemon=True)
    process.start()
    writer.close()
    found = {"loads": f"no answer in {_DEADLINE_S:.0f} s"}
    try:
        if reader.poll(_DEADLINE_S):
            found = reader.recv()
    except EOFError:
        process.join()
        found = {"loads": f"it ends the process (exit code {process.exitcode})"}
    process.kill()
    process.join()
    return found


def _send(writer: Connection, library: str, name: str) -> None:
    writer.send(try_architecture(library, name))


def _page(results: _Results) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("mlx", *results))
    device = "a GPU" if mx.default_device() == mx.gpu else "a CPU"
    parts = [
        "# Architectures",
        _wrapped(
            "", f"By {versions}, on {device}. `python -m bench.families --page` writes this page."
        ),
        _LEGEND.rstrip(),
    ]
    for library, found in results.items():
        parts += [f"## {library}", _counted(found), _table(found)]
        parts.append(_untried(_WITHOUT[library]))
    return "\n\n".join(parts) + "\n"


def _counted(found: Mapping[str, dict[str, str]]) -> str:
    """How many architectures can do what."""
    counts = Counter(
        case for cases in found.values() for case, text in cases.items() if text.startswith(YES)
    )
    parts = ", ".join(f"{_HEADS[case]} {counts[case]}" for case in _shown(found))
    return f"Of {len(found)}: {parts}."


def _untried(reasons: Mapping[str, str]) -> str:
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    lines = [_wrapped("- ", f"{', '.join(names)}: {reason}") for reason, names in groups.items()]
    return "\n".join(["Not tried:", "", *lines])


def _wrapped(mark: str, text: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_on_hyphens=False,
    )


def _shown(found: Mapping[str, dict[str, str]]) -> list[str]:
    return [case for case in CASES if any(case in cases for cases in found.values())]


def _table(found: Mapping[str, dict[str, str]]) -> str:
    reasons: dict[str, int] = {}
    shown = _shown(found)
    rows = [
        f"| {name} | " + " | ".join(_cell(cases.get(case), reasons) for case in shown) + " |"
        for name, cases in found.items()
    ]
    head = "| architecture | " + " | ".join(_HEADS[case] for case in shown) + " |"
    line = "| --- |" + " --- |" * len(shown)
    notes = [_wrapped(f"{number}. ", text) for text, number in reasons.items()]
    return "\n".join([head, line, *rows, "", *notes]).rstrip()


def _cell(text: str | None, reasons: dict[str, int]) -> str:
    if text is None:
        return ""
    if text.startswith(YES):
        return YES if text == YES else f"{YES} ≈"
    return f"no ({reasons.setdefault(text.replace('|', '/'), len(reasons) + 1)})"


if __name__ == "__main__":
    raise SystemExit(main())
