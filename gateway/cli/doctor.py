"""bulkhead doctor"""

from __future__ import annotations

import itertools
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from gateway.cli.child_gateway import end_in_order, fresh_gateway
from gateway.cli.failure import CommandError
from gateway.cli.options import takes_flags
from gateway.cli.output import plural, print_json, print_marked, printable, stdout_console
from gateway.config.settings import Flags
from gateway.doctor import mac, models, throughput
from gateway.doctor.checks import look_at_checks
from gateway.doctor.errands import ProbeError
from gateway.doctor.files import (
    look_at_discovery,
    look_at_disk,
    look_at_folder,
    look_at_model_cache,
    look_at_secrets,
    look_at_socket_path,
)
from gateway.doctor.finding import Check, Finding, Observation, Severity, findings, worst
from gateway.doctor.gateway import (
    look_at_caches,
    look_at_configuration,
    look_at_configuration_in_force,
    look_at_deaths,
    look_at_gateway,
    look_at_leftovers,
    look_at_outputs,
    look_at_port,
    look_at_starts,
    look_at_version,
    look_at_workers,
)
from gateway.doctor.installation import Installation
from gateway.doctor.mac_upgrade import look_at_upgrade
from gateway.doctor.machine import (
    look_at_clock,
    look_at_device,
    look_at_memory,
    look_at_open_files,
    look_at_packages,
    look_at_python,
    look_at_swap,
    look_at_wired_limit,
)
from gateway.doctor.network import look_at_hosts, look_at_network
from gateway.doctor.service import look_at_service
from gateway.doctor.upstreams import look_at_upstreams

CHECKS: Final = (
    Check("configuration", look_at_configuration),
    Check("python", look_at_python),
    Check("packages", look_at_packages),
    Check("device", look_at_device, deadline_s=40.0),
    Check("wired limit", look_at_wired_limit),
    Check("memory", look_at_memory, deadline_s=40.0),
    Check("swap", look_at_swap),
    Check("clock", look_at_clock),
    Check("state folder", look_at_folder),
    Check("secrets", look_at_secrets),
    Check("disk", look_at_disk),
    Check("socket path", look_at_socket_path),
    Check("open files", look_at_open_files),
    Check("network", look_at_network),
    # This deadline is for each host: a host that is out of reach takes seconds.
    Check("hosts", look_at_hosts, deadline_s=30.0),
    # Each upstream has a deadline, and all are asked at once.
    Check("upstreams", look_at_upstreams),
    Check("gateway", look_at_gateway),
    Check("starts", look_at_starts),
    Check("port", look_at_port),
    Check("version", look_at_version),
    Check("in force", look_at_configuration_in_force),
    Check("workers", look_at_workers),
    Check("deaths", look_at_deaths),
    Check("outputs", look_at_outputs),
    Check("cached prompts", look_at_caches),
    Check("leftovers", look_at_leftovers),
    Check("service", look_at_service, deadline_s=60.0),
    Check("model cache", look_at_model_cache),
    Check("discovery", look_at_discovery),
    Check("model", models.look_at_models, models.DEADLINE_S),
    Check("checks", look_at_checks),
)
# Run only with --throughput, because this check sends requests to the gateway.
THROUGHPUT: Final = Check("throughput", throughput.look_at_throughput, throughput.DEADLINE_S)


# Warnings end with 5, because statuses 2 to 4 have the same meaning in every verb.
EXIT_STATUS: Final = {Severity.OK: 0, Severity.WARNING: 5, Severity.ERROR: 1}
_STYLES: Final = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--throughput", is_flag=True, help="Also compare the gateway's speed with this shell's."
)
@click.option(
    "--mac",
    is_flag=True,
    help="Instead measure what Bulkhead assumes of macOS, in five minutes; print a page to send.",
)
@takes_flags
def doctor_command(flags: Flags, *, as_json: bool, throughput: bool, mac: bool) -> None:
    """Look for faults, and print a remedy for each.

    Checks the configuration, the environment, the machine, the state folder, the gateway, the
    service and every model; changes nothing. Takes the options of serve.

    Ends with status 0 if all is well, 5 if there are warnings, 1 if there are errors.
    """
    # The handler drops log lines, so that only findings are printed.
    logging.getLogger().addHandler(logging.NullHandler())
    checks = (*CHECKS, THROUGHPUT) if throughput else CHECKS
    if mac:
        _print_mac(as_json=as_json)
        return
    installation = Installation(flags, os.environ)
    all_findings = []
    console = stdout_console()
    for check in checks:
        with _shown(check, console, quiet=as_json):
            for finding in findings(check, installation):
                all_findings.append(finding)
                if not as_json:
                    _print(console, finding)
    severity = worst(all_findings)
    if as_json:
        print_json({"worst": severity, "findings": all_findings})
    else:
        _print_summary(
            console, all_findings, gateway_runs=installation.running().holder is not None
        )
    sys.exit(EXIT_STATUS[severity])


# The whole page takes five minutes at most.
_MAC_S: Final = 290.0


def _print_mac(*, as_json: bool) -> None:
    """Print the page of `--mac`, each row as it is known."""
    end_in_order()
    rows = mac.rows((*mac.PROBES, _UPGRADE), _MAC_S)
    if as_json:
        print_json({"probes": list(rows)})
        return
    for text in itertools.chain(mac.head(), map(mac.line, rows)):
        # Lines aren't broken at the terminal's width, so that they can be copied.
        click.echo(printable(text))


def _look_at_upgrade(within_s: float) -> Iterator[Observation]:
    with fresh_gateway("--model", "demo") as child:
        try:
            yield from look_at_upgrade(child.address(), within_s)
        except CommandError as error:
            raise ProbeError(error.message) from error


_UPGRADE: Final = mac.MacProbe(
    "upgrade",
    "eight streams go on over an upgrade, each with the same text",
    "gateway/server/upgrade/",
    _look_at_upgrade,
    60.0,
)


def _shown(check: Check, console: Console, *, quiet: bool) -> AbstractContextManager[object]:
    """On a terminal, show the name of the check while it runs."""
    return nullcontext() if quiet or not console.is_terminal else console.status(check.name)


def _print(console: Console, finding: Finding) -> None:
    """Print the finding, and below it the remedy. On a terminal both are broken between words."""
    of = "" if finding.subject is None else f" {finding.subject}"
    print_marked(
        console,
        Text(finding.severity, _STYLES[finding.severity]),
        f"{finding.check}{of}: {finding.evidence}",
    )
    if finding.remedy is not None:
        print_marked(console, Text(""), f"-> {finding.remedy}")


def _print_summary(console: Console, findings: list[Finding], *, gateway_runs: bool) -> None:
    count = {
        severity: sum(finding.severity is severity for finding in findings) for severity in Severity
    }
    runs = "" if gateway_runs else " No gateway runs."
    if count[Severity.OK] == len(findings):
        console.print(f"All is well: {len(findings)} findings.{runs}")
        return
    errors, warnings = plural(count[Severity.ERROR], "error"), count[Severity.WARNING]
    console.print(f"{errors}, {plural(warnings, 'warning')}, {count[Severity.OK]} ok.{runs}")
