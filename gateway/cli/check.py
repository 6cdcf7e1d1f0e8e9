"""bulkhead check"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import click
from msgspec.structs import replace
from rich.text import Text

from gateway.cli.child_gateway import FOLDER_ID, asks_gateway, folder_gateway
from gateway.cli.client import GatewayClient, quoted
from gateway.cli.failure import CommandError, NoSuchModelError
from gateway.cli.models import located
from gateway.cli.options import json_option, model_argument, names_gateway
from gateway.cli.output import (
    plural,
    print_json,
    print_marked,
    printable,
    stderr_console,
    stdout_console,
)
from gateway.http.wire.command_bodies import CheckOptions
from gateway.models.check_reports import CheckReport
from protocol.check import (
    CHECK_S,
    LONGEST_CHECK_S,
    SHORTEST_CHECK_S,
    Owner,
    SectionDone,
    Severity,
    Verdict,
)

# As of doctor: statuses 2 to 4 have the same meaning in every verb.
EXIT_STATUS: Final[dict[Verdict, int]] = {
    "ok": 0,
    "incomplete": 5,
    "warnings": 5,
    "faults": 1,
}
_NOTHING_WRONG: Final[dict[Verdict | None, str]] = {
    "ok": "Nothing wrong was found",
    "incomplete": "Nothing wrong was found, but not everything was checked",
}
_STYLES: Final[dict[Severity, str]] = {"fault": "bold red", "warning": "yellow", "note": "cyan"}
_WORST_FIRST: Final[dict[Severity, int]] = {"fault": 0, "warning": 1, "note": 2}
_OWNERS: Final[dict[Owner, str]] = {
    "model": "the model's",
    "conversion": "the conversion's",
    "bulkhead": "Bulkhead's",
}


@click.command("check")
@model_argument
@click.option(
    "--seconds",
    type=click.FloatRange(SHORTEST_CHECK_S, LONGEST_CHECK_S),
    default=CHECK_S,
    show_default=True,
    help="The time of the check; the load of the model comes on top.",
)
@json_option
@asks_gateway
def check_command(gateway: GatewayClient, *, model: str, seconds: float, as_json: bool) -> None:
    """Check whether a model is whole, and computes and answers as it should.

    MODEL is an id, a repository or a folder; a folder that the gateway doesn't list is checked
    without --url and BULKHEAD_URL. A process beside those that serve loads it for a
    minute, and nothing is unloaded for that. Each finding says what is wrong, with evidence and a
    remedy, and whether the fault is the model's, its conversion's or Bulkhead's. Ctrl-C cancels.

    Ends with status 0 if nothing is wrong, 5 if there are warnings or time or memory were too
    short to check everything, 1 if there are faults.
    """
    report = _report(gateway, model, seconds, quiet=as_json)
    if report.verdict is None:
        raise CommandError(report.reason or f"The check was {report.state}.")
    if as_json:
        print_json(report)
    else:
        _print_findings(report)
    raise click.exceptions.Exit(EXIT_STATUS[report.verdict])


def _report(gateway: GatewayClient, model: str, seconds: float, *, quiet: bool) -> CheckReport:
    """The report of the gateway, or for a folder that it doesn't list, of a temporary one."""
    try:
        return _checked(gateway, model, seconds, quiet=quiet)
    except NoSuchModelError as error:
        source = None if names_gateway() else located(model)
        if source is None:
            raise NoSuchModelError(_folder_unchecked(model) or error.message) from None
    try:
        # The gateway may know the absolute path.
        return _checked(gateway, source, seconds, quiet=quiet)
    except NoSuchModelError:
        with folder_gateway(source) as temporary:
            return replace(_checked(temporary, FOLDER_ID, seconds, quiet=quiet), model=model)


def _folder_unchecked(model: str) -> str:
    """Why the folder of this machine with this name isn't checked; empty: there is no folder."""
    folder = os.path.expanduser(model)  # noqa: PTH111 - Path.expanduser may raise.
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir may raise.
        return ""
    if names_gateway():
        return (
            f"The gateway doesn't list {model}: a folder of this machine is checked without --url "
            "and BULKHEAD_URL."
        )
    return f"The folder {model} is there, but holds no model: it has no config.json."


def _checked(gateway: GatewayClient, model: str, seconds: float, *, quiet: bool) -> CheckReport:
    """Check a model, and print each section when it ends, unless `quiet`."""
    root = "/" if model.startswith("/") else ""
    path = f"/admin/v1/models/{root}{quoted(model.removeprefix('/'), model)}/check"
    with (
        _cancelled_by_interrupt(gateway, path),
        gateway.stream("POST", path, CheckOptions(stream=True, seconds=seconds)) as events,
    ):
        reports = (
            gateway.read(event.data, CheckReport) for event in events if event.kind == "check"
        )
        last = None
        with contextlib.closing(_SectionView(quiet=quiet)) as view:
            for last in reports:
                view.show(last)
    if last is None or not last.over:
        raise CommandError("The gateway has ended, and the check with it.")
    return last


@contextlib.contextmanager
def _cancelled_by_interrupt(gateway: GatewayClient, path: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(CommandError):
            gateway.send("DELETE", path)
        click.echo("bulkhead: Cancelled.", err=True)
        raise


class _SectionView:
    """Prints the sections of a check as they end, and on a terminal what it does meanwhile."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._shown = 0
        self._console = stdout_console()
        errors = stderr_console()
        self._spinner = errors.status("") if errors.is_terminal and not quiet else None
        if self._spinner is not None:
            self._spinner.start()

    def close(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def show(self, report: CheckReport) -> None:
        if self._spinner is not None:
            self._spinner.update(Text(printable(f"{report.model}: {report.reason or 'checking'}")))
        for section in () if self._quiet else report.sections[self._shown :]:
            self._console.print(_section_line(section), soft_wrap=not self._console.is_terminal)
        self._shown = len(report.sections)


def _section_line(section: SectionDone) -> Text:
    took = f"{section.seconds:.1f} s" if section.ran else "-"
    return Text(f"{section.section:<10} {took:>7}  {printable(section.summary)}")


def _print_findings(report: CheckReport) -> None:
    console = stdout_console()
    for finding in sorted(report.findings, key=lambda finding: _WORST_FIRST[finding.severity]):
        print_marked(
            console,
            Text(finding.severity, _STYLES[finding.severity]),
            f"{finding.section}: {finding.what} {finding.evidence} ({_OWNERS[finding.owner]})",
        )
        if finding.remedy:
            print_marked(console, Text(""), f"-> {finding.remedy}")
    found = f"{plural(report.faults, 'fault')}, {plural(report.warnings, 'warning')}"
    result = _NOTHING_WRONG.get(report.verdict, found)
    left_out = ", ".join(section.section for section in report.sections if not section.ran)
    rest = f" Left out: {left_out}." if left_out else ""
    console.print(Text(printable(f"{report.model}: {result}.{rest}")))
