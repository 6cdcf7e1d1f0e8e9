"""bulkhead status and top"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Final, TypeGuard

import click
import msgspec
from rich.console import Console
from rich.table import Table

from gateway.cli.client import STATUS, GatewayClient
from gateway.cli.completion import complete_model
from gateway.cli.failure import WrongUseError
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.output import (
    UNKNOWN,
    duration,
    new_table,
    print_table,
    printable,
    share,
    size,
    stdout_console,
)
from gateway.http.wire.command_bodies import (
    GroupStatus,
    HostStatus,
    MemoryStatus,
    ModelStatus,
    PromptCacheStatus,
    RankStatus,
    SharerStatus,
    Status,
    UpstreamStatus,
    WorkerStatus,
)
from gateway.workers.verdicts import LastExit

_LOG_LINES: Final = 3
_SHARERS: Final = 4
_WATCH_S: Final = 1.0


@click.command("status")
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete_model)
@json_option
@click.option("-w", "--watch", is_flag=True, help="Show it again every second until Ctrl-C.")
@reaches_gateway
def status_command(
    gateway: GatewayClient, *, model: str | None, as_json: bool, watch: bool
) -> None:
    """Show the gateway, its memory and its models, or MODEL alone.

    "holds" is the memory that the end of the worker would free, "last step" the time since the
    worker last produced something, and "cached" the share of prompt tokens that were found in the
    prompt cache. "guesses" is the share of guessed tokens that were right.
    """
    # An alias stands for its model, and an unknown name is an error.
    model = None if model is None else gateway.model(model).id
    _show(gateway, model, as_json=as_json)
    while watch:
        time.sleep(_WATCH_S)
        if sys.stdout.isatty():
            click.clear()
        _show(gateway, model, as_json=as_json)


def _show(gateway: GatewayClient, model: str | None, *, as_json: bool) -> None:
    content = gateway.get(STATUS)
    reading = gateway.read(content, Status)
    if model is not None:
        reading.models = [entry for entry in reading.models if entry.id == model]
        reading.upstreams = [
            upstream for upstream in reading.upstreams if model.startswith(f"{upstream.name}/")
        ]
        reading.groups, reading.hosts = [], []
    if not as_json:
        _print(stdout_console(), reading, gateway.url)
    elif model is None:
        click.echo(msgspec.json.format(content, indent=2))
    else:
        click.echo(msgspec.json.format(msgspec.json.encode(reading.models), indent=2))


def _print(console: Console, reading: Status, url: str) -> None:
    console.print(
        f"Bulkhead {reading.version} at {url}: {reading.state}, pid {reading.pid}, "
        f"up {duration(reading.uptime_s)}"
    )
    if reading.reason is not None:
        console.print(printable(f"Careful: {reading.reason}"))
    console.print(_budget_line(reading.memory))
    console.print(_prompts_line(reading.prompt_cache))
    console.print()
    print_table(console, _table(reading.models))
    if reading.groups or any(next(_remarks(each), None) for each in reading.models):
        console.print()
    for group in reading.groups:
        console.print(printable(_group_line(group)))
    for model in reading.models:
        for remark in _remarks(model):
            console.print(remark)
        for line in _log_tail(model):
            console.print(line, overflow="fold")
    console.print()
    print_table(console, memory_table(reading))
    if reading.upstreams:
        console.print()
        print_table(console, _upstreams_table(reading.upstreams))
        for upstream in reading.upstreams:
            console.print(printable(_upstream_line(upstream)))
    if reading.hosts:
        console.print()
        print_table(console, _hosts_table(reading.hosts))
        for host in reading.hosts:
            if host.reason is not None:
                console.print(printable(f"{host.name}: {host.reason}"))


def _upstreams_table(upstreams: list[UpstreamStatus]) -> Table:
    table = new_table(1)
    table.add_column("model of an upstream", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("active", justify="right", no_wrap=True)
    for upstream in upstreams:
        for model in upstream.models:
            name = printable(f"{upstream.name}/{model.id}")
            table.add_row(name, printable(model.state), str(model.active_requests))
    return table


def _upstream_line(upstream: UpstreamStatus) -> str:
    text = f"Upstream {upstream.name} ({upstream.url})"
    return text if upstream.reason is None else f"{text}: {upstream.reason}"


def _hosts_table(hosts: list[HostStatus]) -> Table:
    table = new_table(1)
    table.add_column("host", overflow="fold")
    for heading in ("version", "ranks", "holds", "free", "budget"):
        table.add_column(heading, justify="right", no_wrap=True)
    for host in hosts:
        table.add_row(
            printable(host.name),
            printable(host.version or "out of reach"),
            UNKNOWN if host.ranks is None else str(host.ranks),
            *map(size, (host.held_bytes, host.free_bytes, host.budget_bytes)),
        )
    return table


def _budget_line(memory: MemoryStatus) -> str:
    pressure = "" if memory.pressure is None else f"; pressure {memory.pressure}"
    return (
        f"Budget {size(memory.budget_bytes)}: workers hold {size(memory.footprint_bytes)}, "
        f"granted {size(memory.granted_bytes)}{pressure}"
    )


def _prompts_line(prompts: PromptCacheStatus) -> str:
    kept = (
        f"Prompts: {size(prompts.memory_bytes)} kept in memory, {size(prompts.disk_bytes)} on disk"
    )
    if prompts.hit_rate is None:
        return kept
    return f"{kept}; {share(prompts.hit_rate)} of {prompts.prompt_tokens:,} tokens were found there"


def _group_line(group: GroupStatus) -> str:
    kinds = [kind for kind in ("together", "swap", "reserve") if getattr(group, kind)]
    loaded = ", ".join(group.loaded) or "none"
    text = f"Group {group.id} ({', '.join(kinds)}) of {', '.join(group.models)}: {loaded} loaded"
    if group.kept_bytes:
        text += f", {size(group.kept_bytes)} kept for the others"
    return text if group.reason is None else f"{text}; {group.reason}"


def _table(models: list[ModelStatus]) -> Table:
    table = new_table(1)
    table.add_column("model", overflow="fold")
    table.add_column("state", no_wrap=True)
    for heading in ("pid", "context", "active", "queued", "restarts", "last step", "cached"):
        table.add_column(heading, justify="right", no_wrap=True)
    guessing = any(model.guesses.accept_rate is not None for model in models)
    if guessing:
        table.add_column("guesses", justify="right", no_wrap=True)
    for model in models:
        worker = model.worker
        step_age_s = None if worker is None else worker.last_step_age_s
        table.add_row(
            printable(model.id),
            model.state,
            UNKNOWN if worker is None else str(worker.pid),
            UNKNOWN if model.context_tokens is None else f"{model.context_tokens:,}",
            str(model.active_requests),
            str(model.queue_depth),
            str(model.restarts),
            UNKNOWN if step_age_s is None else duration(step_age_s),
            share(model.prompt_cache.hit_rate),
            *([share(model.guesses.accept_rate)] if guessing else []),
        )
    return table


def _remarks(model: ModelStatus) -> Iterator[str]:
    if model.worker is not None and model.worker.ranks:
        yield printable(f"{model.id}: {'; '.join(map(_rank, model.worker.ranks))}")
    if model.reason is not None:
        yield printable(f"{model.id}: {model.reason}")
    sharing = [each for each in model.sharers if each.active_requests + each.queue_depth]
    if len(sharing) > 1:
        yield printable(f"{model.id}: {_sharing(sharing)}")
    for death in model.repeated_deaths:
        last = f"the last at {_local(death.last_at)}"
        yield printable(f"Careful: {model.id}: {death}; {last}. {death.remedy}")
    if _died(model.last_exit):
        yield printable(f"{model.id}: {_exit(model.last_exit)}")


def _sharing(sharers: list[SharerStatus]) -> str:
    """Whose turn is next, and what the first of those who share a model have and took."""
    parts = (
        f"{each.name or '(gateway)'} took {duration(each.cost_s)}, {each.active_requests} run, "
        f"{each.queue_depth} wait"
        for each in sharers[:_SHARERS]
    )
    more = f"; {len(sharers) - _SHARERS} more" if len(sharers) > _SHARERS else ""
    return f"shared, next turn first: {'; '.join(parts)}{more}"


def _rank(rank: RankStatus) -> str:
    pid = UNKNOWN if rank.pid is None else str(rank.pid)
    return f"rank {rank.rank} on {rank.host}, pid {pid}, holds {size(rank.footprint_bytes)}"


def _log_tail(model: ModelStatus) -> Iterator[str]:
    if _died(model.last_exit):
        for line in model.last_exit.log_tail[-_LOG_LINES:]:
            yield f"  | {printable(line)}"


def _died(last_exit: LastExit | None) -> TypeGuard[LastExit]:
    """Whether the worker died. An exit with code 0 was ordered, and isn't shown."""
    return last_exit is not None and last_exit.code != 0


def _exit(last_exit: LastExit) -> str:
    return f"the last worker ended {last_exit.how} at {_local(last_exit.at)}: {last_exit.reason}"


def _local(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def memory_table(reading: Status) -> Table:
    """The table of memory, with a row for each worker and for each other holder. A loaded model
    keeps its "floor"; "lent" memory can be called back; "wants" is the most that the model could
    use. The worker itself reports "weights" and "caches", which include the memory of a step and
    freed buffers. "rest" is the memory of Python and its libraries.
    """
    table = new_table(1)
    table.add_column("memory", overflow="fold")
    for heading in ("holds", "floor", "lent", "wants", "weights", "caches", "rest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in reading.models:
        if model.worker is not None:
            table.add_row(printable(model.id), *_cells(model, model.worker))
    for holder, size_bytes in _others(reading.memory):
        table.add_row(holder, size(size_bytes))
    table.add_row("total", size(reading.memory.total_bytes), style="bold")
    return table


def _others(memory: MemoryStatus) -> tuple[tuple[str, int | None], ...]:
    return (
        ("(spare workers)", memory.spare_bytes),
        ("(gateway)", memory.gateway_bytes),
        ("(other programs)", memory.other_bytes),
        ("(stranded)", memory.stranded_bytes),
        ("(available)", memory.available_bytes),
    )


def _cells(model: ModelStatus, worker: WorkerStatus) -> tuple[str, ...]:
    account = (model.floor_bytes, model.lent_bytes, model.wanted_bytes)
    parts = (worker.weight_bytes, _cached(worker), _rest(worker))
    return tuple(size(each) for each in (worker.footprint_bytes, *account, *parts))


def _cached(worker: WorkerStatus) -> int | None:
    """Bytes of the caches, and of freed buffers that MLX keeps."""
    if worker.cache_bytes is None or worker.buffer_bytes is None:
        return None
    return worker.cache_bytes + worker.buffer_bytes


def _rest(worker: WorkerStatus) -> int | None:
    """The footprint without weights and caches. The result is at least 0, since footprint and parts
    are read at different moments.
    """
    rest_bytes = worker.footprint_bytes
    for each in (worker.weight_bytes, _cached(worker)):
        if rest_bytes is None or each is None:
            return None
        rest_bytes -= each
    return None if rest_bytes is None else max(0, rest_bytes)


@click.command("top")
@reaches_gateway
def top_command(gateway: GatewayClient) -> None:
    """Watch the gateway live: memory, models, requests, events; with keys to steer models.

    Press q to quit, ? for the keys and columns. While no gateway answers, it keeps trying.
    """
    _check_terminal()
    # Textual takes longer to import than other verbs take to run.
    from gateway.cli.top_screen import Top

    top = Top(gateway)
    top.run(mouse=False)
    # After a failure Textual has already printed the traceback.
    if top.return_code:
        raise click.exceptions.Exit(top.return_code)


def _check_terminal() -> None:
    """Raise WrongUseError without a terminal. Textual draws on stderr and reads keys from stdin."""
    for name, stream in (("input", sys.stdin), ("output", sys.stdout), ("error", sys.stderr)):
        if not stream.isatty():
            raise WrongUseError(
                f"top needs a terminal, and its standard {name} isn't one: `bulkhead status` "
                "prints the same figures."
            )
    kind = os.environ.get("TERM", "")
    if kind in ("", "dumb"):
        raise WrongUseError(
            f"top draws on the whole screen, and a terminal with TERM={kind or '(unset)'} can't do "
            "that: `bulkhead status --watch` prints line by line."
        )
