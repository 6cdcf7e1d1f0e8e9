"""Checks of the gateway: its configuration, address, version, earlier ends, and its workers.

The doctor ends no workers. It reports workers that SIGSTOP has stopped, and workers whose gateway
is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil
from msgspec import Struct

from gateway import VERSION
from gateway.config.layers import Mistake
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.installation import Installation, Running, is_stopped
from gateway.http.wire.command_bodies import ConfigStatus
from gateway.system.listening import is_here
from gateway.system.memory import footprint
from gateway.system.memory_reading import FootprintError
from gateway.system.notation import format_size
from gateway.system.processes import alive
from gateway.system.state_dir import StateDir, UncleanStarts
from gateway.system.state_file import read_state
from gateway.workers.cache_proof import CacheProofState
from gateway.workers.cause_of_death import RepeatedDeath
from gateway.workers.orphans import WorkerRecords


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
            "See `bulkhead logs`. If the process neither starts nor ends, end it: "
            f"`kill {running.holder.pid}`.",
        )
    how = "as a service" if running.is_service else "started by hand"
    return ok("gateway", f"It serves at {running.url} ({running.holder}, {how}).")


def look_at_port(installation: Installation) -> Iterator[Finding]:
    settings = installation.settings.gateway
    if is_here(settings.host):
        yield judge_port(installation.running(), settings.host, settings.port)
    else:
        yield error(
            "port",
            f"This machine has no address {settings.host}, so a gateway can't listen there.",
            "Start Docker, or the network that has the address, or choose another with --host or "
            "gateway.host.",
        )


def judge_port(running: Running, host: str, port: int) -> Finding:
    """Judge the configured port, at an address of this machine."""
    if port == 0:
        return ok("port", "It is 0: the gateway takes a free one.")
    at = f"Port {port} on {host}"
    if running.port_free:
        return ok("port", f"{at} is free.")
    if running.stranger is not None:
        return error(
            "port",
            f"{at} belongs to a Bulkhead gateway (version {running.stranger.version}) that doesn't "
            "use this state folder.",
            "If you mean that gateway, name its folder with --state-dir; otherwise end it, or "
            "choose another port.",
        )
    if running.port_holder is None and running.holder is not None and running.address[1] == port:
        return ok("port", f"{at} is the gateway's.")
    who = f" ({running.port_holder})" if running.port_holder else ""
    return error(
        "port",
        f"{at} can't be used: another program{who} has it.",
        "End that program, or choose another port with --port or gateway.port.",
    )


def look_at_configuration_in_force(installation: Installation) -> Iterator[Finding]:
    file = installation.config_file
    doctor_config = ConfigStatus(
        None if file is None else str(file.absolute()), installation.config_digest
    )
    status = installation.running().status
    yield judge_configuration_in_force(None if status is None else status.config, doctor_config)


def judge_configuration_in_force(
    running: ConfigStatus | None, doctor_config: ConfigStatus
) -> Finding:
    """`running` is what the gateway has read, `doctor_config` is what the doctor has read."""
    if running is None:
        return ok("in force", "No gateway runs that reports its configuration.")
    if running.file != doctor_config.file:
        return warning(
            "in force",
            f"The gateway has read {running.file or 'no configuration file'}, and the doctor "
            f"{doctor_config.file or 'none'}.",
            "Give the doctor the same --config as `bulkhead serve`, or start the gateway with the "
            "other file.",
        )
    if running.digest != doctor_config.digest:
        return warning(
            "in force",
            f"{doctor_config.file} has changed since the gateway has read it.",
            "`bulkhead config reload` applies the changes, or says which need a restart.",
        )
    return ok("in force", "The gateway and the doctor have read the same configuration.")


def look_at_version(installation: Installation) -> Iterator[Finding]:
    yield judge_version(installation.running(), VERSION)


def judge_version(running: Running, installed: str) -> Finding:
    """Judge the version: after an installation the old gateway runs until a restart or upgrade."""
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
            f"{how}: a running gateway keeps its version.",
        )
    return ok("version", f"{installed} is installed and runs.")


_STARTS: Final = "starts"


def look_at_starts(installation: Installation) -> Iterator[Finding]:
    record = read_state(installation.state_dir.starts_path, UncleanStarts) or UncleanStarts()
    # If a gateway runs, the last start is its own. This start has no end yet.
    runs = installation.running().holder is not None
    yield judge_starts(record.at[:-1] if runs else record.at)


def judge_starts(unclean: tuple[float, ...]) -> Finding:
    """`unclean` has the Unix times of the starts of gateways that did not end in order."""
    if not unclean:
        return ok(_STARTS, "Every known gateway has ended in order.")
    last = datetime.fromtimestamp(unclean[-1], UTC)
    return warning(
        _STARTS,
        f"{len(unclean)} of the last gateways did not end in order; the last of them was started "
        f"on {last:%Y-%m-%d %H:%M} UTC.",
        "`bulkhead logs` and `bulkhead service logs` have their last lines, and `bulkhead events` "
        "the events since. The next orderly end clears this record.",
    )


_CONFIGURATION = "configuration"


def look_at_configuration(installation: Installation) -> Iterator[Finding]:
    yield from judge_configuration(
        installation.config_file, installation.mistakes, len(installation.settings.models)
    )


def judge_configuration(
    file: Path | None, mistakes: Sequence[Mistake], models: int
) -> Iterator[Finding]:
    """Yield a finding for each mistake. Without mistakes the finding is that all is well."""
    for mistake in mistakes:
        yield error(
            _CONFIGURATION,
            str(mistake),
            "Correct it: docs/configuration.md and `bulkhead config example` have every key. "
            "Until then the other checks assume the default.",
        )
    if mistakes:
        return
    state = "There is no file, and none is needed" if file is None else f"{file} is good"
    count = f"{models} model{'' if models == 1 else 's'}"
    yield ok(_CONFIGURATION, f"{state}: {count if models else 'no models of its own'}.")


_DEATHS: Final = "deaths"
_CACHES: Final = "cached prompts"


class StoppedWorker(Struct, frozen=True):
    """A worker that SIGSTOP has stopped; `model` is None for a spare."""

    pid: int
    model: str | None


def look_at_workers(installation: Installation) -> Iterator[Finding]:
    running = installation.running()
    if running.holder is None:
        yield ok("workers", "There are none, as no gateway runs.")
        return
    models = {model.worker.pid: model.id for model in running.models if model.worker is not None}
    stopped, nice = [], {}
    for record in WorkerRecords(installation.state_dir.workers).records():
        pid = record.process.pid
        with contextlib.suppress(psutil.Error):
            if not alive(record.process) or psutil.Process(pid).ppid() != running.holder.pid:
                continue
            nice[pid] = psutil.Process(pid).nice()
            if is_stopped(pid):
                stopped.append(StoppedWorker(pid, models.get(pid)))
    yield from judge_workers(stopped, nice)


def judge_workers(stopped: Collection[StoppedWorker], nice: Mapping[int, int]) -> Iterator[Finding]:
    """`nice` has the nice values of all workers by their pids. macOS 27 refuses what a process asks
    of the GPU beside one of higher priority (omlx#3706).
    """
    for worker in stopped:
        name = "of no model" if worker.model is None else worker.model
        other = "" if worker.model is None else f", `bulkhead restart {worker.model}` replaces it"
        yield warning(
            "workers",
            f"Worker {worker.pid} ({name}) was stopped, so it computes nothing.",
            f"`kill -CONT {worker.pid}` lets it go on{other}.",
        )
    if len(set(nice.values())) > 1:
        values = ", ".join(f"{value} (worker {pid})" for pid, value in nice.items())
        yield warning(
            "workers",
            f"Their nice values differ: {values}. The GPU may refuse those of lower priority.",
            "`bulkhead restart MODEL` gives its worker the gateway's own nice value.",
        )
    elif not stopped:
        yield ok("workers", "None was stopped, and their priorities are equal.")


def look_at_deaths(installation: Installation) -> Iterator[Finding]:
    running = installation.running()
    deaths = {model.id: model.repeated_deaths for model in running.models}
    yield from judge_deaths(deaths, gateway_runs=running.holder is not None)


def judge_deaths(
    deaths: Mapping[str, Sequence[RepeatedDeath]], *, gateway_runs: bool
) -> Iterator[Finding]:
    """`deaths` has, by model, the errors that its workers die of again and again."""
    for model_id, errors in deaths.items():
        for repeated in errors:
            yield warning(_DEATHS, f"{repeated}.", repeated.remedy, subject=model_id)
    if not any(deaths.values()):
        text = "No error has ended workers again and again." if gateway_runs else "No gateway runs."
        yield ok(_DEATHS, text)


_OUTPUTS: Final = "outputs"


def look_at_outputs(installation: Installation) -> Iterator[Finding]:
    running = installation.running()
    counts = {model.id: model.invalid_outputs for model in running.models}
    plain = [model.id for model in running.models if model.plain]
    yield from judge_outputs(counts, plain, gateway_runs=running.holder is not None)


def judge_outputs(
    counts: Mapping[str, int], plain: Collection[str], *, gateway_runs: bool
) -> Iterator[Finding]:
    """`counts` has, by model, how often the logits of an answer weren't finite, or were all the
    same. The workers of `plain` models have no quantized caches and guess nothing because of that.
    """
    faulty = {model_id: count for model_id, count in counts.items() if count}
    for model_id, count in faulty.items():
        times = "once" if count == 1 else f"{count} times"
        consequence = " Its worker is plain now." if model_id in plain else ""
        yield warning(
            _OUTPUTS,
            f"The numbers of its answers were wrong {times}.{consequence}",
            f"`bulkhead check {model_id}` looks for the fault, and `bulkhead events` says which "
            "requests these were.",
            subject=model_id,
        )
    if not faulty:
        text = "No answer had numbers that were wrong." if gateway_runs else "No gateway runs."
        yield ok(_OUTPUTS, text)


def look_at_caches(installation: Installation) -> Iterator[Finding]:
    running = installation.running()
    proofs = {model.id: model.cache_proof for model in running.models}
    yield from judge_caches(proofs, gateway_runs=running.holder is not None)


def judge_caches(
    proofs: Mapping[str, CacheProofState | None], *, gateway_runs: bool
) -> Iterator[Finding]:
    """`proofs` has, by model, what was proven of its cached prompts."""
    wrong = {
        model_id: proof for model_id, proof in proofs.items() if proof and proof.quarantined_blocks
    }
    for model_id, proof in wrong.items():
        goes_on = " It goes on without a prompt cache." if proof.off else ""
        yield warning(
            _CACHES,
            f"{proof.quarantined_blocks} of its cached blocks were wrong, and are in quarantine."
            f"{goes_on}",
            "`bulkhead events` says what was wrong: faulty memory, a faulty disk, or a fault of "
            "the server, to be reported. Then clear the model's prompt cache.",
            subject=model_id,
        )
    if not wrong:
        text = "No cached prompt was found to be wrong." if gateway_runs else "No gateway runs."
        yield ok(_CACHES, text)


class Leftover(Struct, frozen=True):
    """A worker that runs without its gateway. A footprint that can't be read is None."""

    pid: int
    name: str
    footprint_bytes: int | None
    stopped: bool = False


def look_at_leftovers(installation: Installation) -> Iterator[Finding]:
    holder = installation.running().holder
    leftovers = _leftovers(installation.state_dir, None if holder is None else holder.pid)
    yield from judge_leftovers(leftovers, gateway_runs=holder is not None)


def _leftovers(state_dir: StateDir, gateway_pid: int | None) -> list[Leftover]:
    """Recorded workers that run, but are no children of the running gateway."""
    leftovers = []
    for record in WorkerRecords(state_dir.workers).records():
        pid = record.process.pid
        with contextlib.suppress(psutil.Error):
            if alive(record.process) and psutil.Process(pid).ppid() != gateway_pid:
                leftovers.append(Leftover(pid, record.name, _footprint_bytes(pid), is_stopped(pid)))
    return leftovers


def _footprint_bytes(pid: int) -> int | None:
    try:
        return footprint(pid).current_bytes
    except FootprintError:
        return None


def judge_leftovers(leftovers: Collection[Leftover], *, gateway_runs: bool) -> Iterator[Finding]:
    for leftover in leftovers:
        size = leftover.footprint_bytes
        held = "" if size is None else f" and holds {format_size(size)}"
        state = "was stopped" if leftover.stopped else "still runs"
        yield warning(
            "leftovers",
            f"Worker {leftover.pid} ({leftover.name}) of a gateway that is gone {state}{held}.",
            _remedy(leftover, gateway_runs=gateway_runs),
        )
    if not leftovers:
        yield ok("leftovers", "No worker of an earlier gateway is left.")


def _remedy(leftover: Leftover, *, gateway_runs: bool) -> str:
    if leftover.stopped:
        return f"Let it go on, and it ends by itself: `kill -CONT {leftover.pid}`."
    if gateway_runs:
        return f"End it: `kill {leftover.pid}`. If it stays, a restart of the machine ends it."
    return (
        f"The next start of a gateway on this state folder ends it, as does `kill {leftover.pid}`."
    )
