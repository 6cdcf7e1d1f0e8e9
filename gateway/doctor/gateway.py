"""The gateway that runs: its lock, its address, its version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gateway import VERSION
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation
from gateway.doctor.running import InForce, Running


def look_at_gateway(installation: Installation) -> Iterator[Finding]:
    yield judge_gateway(installation.running(), installation.state_dir.path)


def judge_gateway(running: Running, state_dir: Path) -> Finding:
    if running.holder is None:
        return ok("gateway", f"None runs on {state_dir}.")
    if running.health is None and running.holder.stopped:
        return error(
            "gateway",
            f"The gateway of {state_dir} ({running.holder}) was stopped, so it doesn't answer at "
            f"{running.url}.",
            f"Let it go on: `kill -CONT {running.holder.pid}`.",
        )
    if running.health is None:
        return error(
            "gateway",
            f"A process ({running.holder}) holds the lock of {state_dir}, but doesn't answer at "
            f"{running.url}.",
            "See `bulkhead logs`. If it neither starts nor ends, end it: "
            f"`kill {running.holder.pid}`.",
        )
    how = "as a service" if running.is_service else "started by hand"
    return ok("gateway", f"It serves at {running.url} ({running.holder}, {how}).")


def look_at_port(installation: Installation) -> Iterator[Finding]:
    settings = installation.settings.gateway
    yield judge_port(installation.running(), settings.host, settings.port)


def judge_port(running: Running, host: str, port: int) -> Finding:
    """The configured one."""
    if port == 0:
        return ok("port", "0: a free one is taken.")
    at = f"Port {port} on {host}"
    if running.port_free:
        return ok("port", f"{at} is free.")
    if running.stranger is not None:
        return error(
            "port",
            f"{at} belongs to a Bulkhead gateway (version {running.stranger.version}) that doesn't "
            "use this state folder.",
            "If it is the one that you mean, name its folder with --state-dir; else end it, or "
            "choose another port.",
        )
    if running.port_holder is None and running.holder is not None and running.address[1] == port:
        return ok("port", f"{at} is the gateway's.")
    who = f" ({running.port_holder})" if running.port_holder else ""
    return error(
        "port",
        f"{at} can't be used: another program{who} has it.",
        "End that, or choose another with --port or gateway.port.",
    )


def look_at_configuration_in_force(installation: Installation) -> Iterator[Finding]:
    file = installation.config_file
    here = InForce(None if file is None else str(file.absolute()), installation.config_digest)
    yield judge_configuration_in_force(installation.running().in_force, here)


def judge_configuration_in_force(running: InForce | None, here: InForce) -> Finding:
    """`here` is the file that was looked at."""
    if running is None:
        return ok("in force", "No gateway tells which configuration it has read.")
    if running.file != here.file:
        return warning(
            "in force",
            f"The gateway runs with {running.file or 'no configuration file'}, and "
            f"{here.file or 'none'} was looked at.",
            "Give the doctor what `bulkhead serve` was given (--config), or start the gateway "
            "with the other file.",
        )
    if running.digest != here.digest:
        return warning(
            "in force",
            f"{here.file} isn't any more what the gateway has read.",
            "`bulkhead config reload` applies it, or says what takes a restart.",
        )
    return ok("in force", "The gateway has read what was looked at.")


def look_at_version(installation: Installation) -> Iterator[Finding]:
    yield judge_version(installation.running(), VERSION)


def judge_version(running: Running, installed: str) -> Finding:
    """After an upgrade the old gateway goes on until it is started anew."""
    if running.health is None:
        return ok("version", f"{installed} is installed, and no gateway answers.")
    if running.health.version != installed:
        how = (
            "`bulkhead service restart`"
            if running.is_service
            else "End the gateway and start it again"
        )
        return warning(
            "version",
            f"Version {running.health.version} runs, and {installed} is installed.",
            f"{how}: what runs doesn't change by itself.",
        )
    return ok("version", f"{installed} is installed and runs.")
