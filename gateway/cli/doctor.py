"""bulkhead doctor"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.failure import interruptible
from gateway.cli.options import takes_flags
from gateway.cli.output import printable, printable_json, stdout_console
from gateway.config.settings import Flags
from gateway.doctor.checks import CHECKS, THROUGHPUT, memory_check
from gateway.doctor.finding import Check, Finding, Severity, findings, worst
from gateway.doctor.installation import Installation
from gateway.doctor.memory_check import MemoryCheck

# 2 to 4 have meanings of their own in every verb.
EXIT_STATUS: Final = {Severity.OK: 0, Severity.WARNING: 5, Severity.ERROR: 1}
_STYLES: Final = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}
_MARK_WIDTH: Final = 8


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--throughput", is_flag=True, help="Also compare the gateway's speed with this shell's."
)
@click.option(
    "--memory",
    is_flag=True,
    help="Also measure what Bulkhead assumes of memory, and print a report to send.",
)
@takes_flags
def doctor_command(flags: Flags, *, as_json: bool, throughput: bool, memory: bool) -> None:
    """Look for what is wrong, and say what to do about it.

    Looks at the configuration, the environment, the machine, the state folder, the gateway, the
    service and every model; changes nothing. Takes what serve takes.

    Ends with status 0 if all is well, 5 if there are warnings, 1 if there are errors.
    """
    # What is found is said by the findings.
    logging.getLogger().addHandler(logging.NullHandler())
    checks = (*CHECKS, THROUGHPUT) if throughput else CHECKS
    measured = MemoryCheck() if memory else None
    if measured is not None:
        checks = (*checks, memory_check(measured))
    with interruptible():
        installation = Installation(flags, os.environ)
        found = []
        console = stdout_console()
        for check in checks:
            with _shown(check, console, quiet=as_json):
                for finding in findings(check, installation):
                    found.append(finding)
                    if not as_json:
                        _print(console, finding)
    verdict = worst(found)
    if as_json:
        content = msgspec.to_builtins({"worst": verdict, "findings": found})
        if measured is not None:
            content["memory_report"] = measured.report().splitlines()
        click.echo(printable_json(content))
    else:
        if measured is not None:
            # As it is, so that it can be copied.
            click.echo(f"\n{printable(measured.report())}\n")
        _print_summary(console, found, gateway_runs=installation.running().holder is not None)
    sys.exit(EXIT_STATUS[verdict])


def _shown(check: Check, console: Console, *, quiet: bool) -> AbstractContextManager[object]:
    """On a terminal what is looked at, as some of it takes seconds."""
    return nullcontext() if quiet or not console.is_terminal else console.status(check.name)


def _print(console: Console, finding: Finding) -> None:
    """A line, and one for the remedy; on a terminal they are broken between words."""
    of = "" if finding.subject is None else f" {finding.subject}"
    _print_row(
        console,
        Text(finding.severity, _STYLES[finding.severity]),
        f"{finding.check}{of}: {finding.evidence}",
    )
    if finding.remedy is not None:
        _print_row(console, Text(""), f"-> {finding.remedy}")


def _print_row(console: Console, mark: Text, text: str) -> None:
    body = Text(printable(text).replace("\n", " "))
    if not console.is_terminal:
        console.print(f"{mark.plain:<{_MARK_WIDTH}}{body.plain}", soft_wrap=True)
        return
    row = Table.grid(padding=0)
    row.add_column(width=_MARK_WIDTH, no_wrap=True)
    row.add_column(overflow="fold")
    row.add_row(mark, body)
    console.print(row)


def _print_summary(console: Console, found: list[Finding], *, gateway_runs: bool) -> None:
    count = {each: sum(one.severity is each for one in found) for each in Severity}
    runs = "" if gateway_runs else " No gateway runs."
    if count[Severity.OK] == len(found):
        console.print(f"All is well: {len(found)} findings.{runs}")
        return
    errors, warnings = _plural(count[Severity.ERROR], "error"), count[Severity.WARNING]
    console.print(f"{errors}, {_plural(warnings, 'warning')}, {count[Severity.OK]} ok.{runs}")


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
