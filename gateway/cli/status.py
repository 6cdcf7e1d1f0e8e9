"""bulkhead status and top"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeGuard

import click
import msgspec
from rich.console import Console
from rich.table import Table

from gateway.cli.client import STATUS, GatewayClient
from gateway.cli.completion import complete_model
from gateway.cli.failure import WrongUseError
from gateway.cli.model_table import memory_table, status_table
from gateway.cli.options import json_option, reaches_gateway
from gateway.cli.output import (
    UNKNOWN,
    Column,
    count,
    duration,
    print_table,
    printable,
    share,
    size,
    stdout_console,
    table_of,
)
from gateway.http.wire.command_bodies import (
    GroupStatus,
    HostStatus,
    MemoryStatus,
    ModelStatus,
    OfferStatus,
    PromptCacheStatus,
    RankStatus,
    SharerStatus,
    Status,
    UpstreamStatus,
)
from gateway.workers.cache_proof import CacheProofState
from gateway.workers.cause_of_death import LastExit

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

    "holds" is the memory that the end of the worker would free, "step" the time since the worker
    last produced something, and "cached" the share of prompt tokens that were found in the
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
        reading.models = [
            model_status for model_status in reading.models if model_status.id == model
        ]
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
    print_table(console, status_table(reading.models))
    if reading.groups or any(next(_remarks(model), None) for model in reading.models):
        console.print()
    for group in reading.groups:
        console.print(printable(_group_line(group)))
    for model in reading.models:
        for remark in _remarks(model):
            console.print(remark)
        for line in _log_tail(model):
            console.print(line, overflow="fold")
    console.print()
    print_table(console, _memory_table(reading))
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


class _Offer(NamedTuple):
    """A model of an upstream."""

    upstream: str
    model: OfferStatus


_OFFERS: Final = (
    Column[_Offer](
        "model of an upstream",
        lambda offer: printable(f"{offer.upstream}/{offer.model.id}"),
        "name",
    ),
    Column[_Offer]("state", lambda offer: printable(offer.model.state), "word"),
    Column[_Offer]("active", lambda offer: str(offer.model.active_requests)),
)


def _upstreams_table(upstreams: list[UpstreamStatus]) -> Table:
    offers = [_Offer(upstream.name, model) for upstream in upstreams for model in upstream.models]
    return table_of(offers, _OFFERS, gap=1)


def _upstream_line(upstream: UpstreamStatus) -> str:
    text = f"Upstream {upstream.name} ({upstream.url})"
    return text if upstream.reason is None else f"{text}: {upstream.reason}"


_HOSTS: Final = (
    Column[HostStatus]("host", lambda host: printable(host.name), "name"),
    Column[HostStatus]("version", lambda host: printable(host.version or "out of reach")),
    Column[HostStatus]("ranks", lambda host: count(host.ranks)),
    Column[HostStatus]("holds", lambda host: size(host.held_bytes)),
    Column[HostStatus]("free", lambda host: size(host.free_bytes)),
    Column[HostStatus]("budget", lambda host: size(host.budget_bytes)),
)


def _hosts_table(hosts: list[HostStatus]) -> Table:
    return table_of(hosts, _HOSTS, gap=1)


def _budget_line(memory: MemoryStatus) -> str:
    pressure = "" if memory.pressure is None else f"; pressure {memory.pressure}"
    return (
        f"Budget {size(memory.budget_bytes)}: workers hold {size(memory.footprint_bytes)}, "
        f"granted {size(memory.granted_bytes)}{pressure}"
    )


def _prompts_line(prompts: PromptCacheStatus) -> str:
    line = (
        f"Prompts: {size(prompts.memory_bytes)} kept in memory, {size(prompts.disk_bytes)} on disk"
    )
    if prompts.hit_rate is None:
        return line
    return f"{line}; {share(prompts.hit_rate)} of {prompts.prompt_tokens:,} tokens were found there"


def _group_line(group: GroupStatus) -> str:
    kinds = [kind for kind in ("together", "swap", "reserve") if getattr(group, kind)]
    loaded = ", ".join(group.loaded) or "none"
    text = f"Group {group.id} ({', '.join(kinds)}) of {', '.join(group.models)}: {loaded} loaded"
    if group.kept_bytes:
        text += f", {size(group.kept_bytes)} kept for the others"
    return text if group.reason is None else f"{text}; {group.reason}"


def _remarks(model: ModelStatus) -> Iterator[str]:
    if model.worker is not None and model.worker.ranks:
        yield printable(f"{model.id}: {'; '.join(map(_rank, model.worker.ranks))}")
    if model.reason is not None:
        yield printable(f"{model.id}: {model.reason}")
    sharing = [sharer for sharer in model.sharers if sharer.active_requests + sharer.queue_depth]
    if len(sharing) > 1:
        yield printable(f"{model.id}: {_sharing(sharing)}")
    if (proof := model.cache_proof) is not None:
        yield printable(f"{model.id}: {_proof(proof)}")
    for death in model.repeated_deaths:
        last = f"the last at {_local(death.last_at)}"
        yield printable(f"Careful: {model.id}: {death}; {last}. {death.remedy}")
    if model.plain:
        yield printable(
            f"{model.id}: the worker is plain, since the numbers of an answer were wrong: "
            "unquantized caches, no guesses"
        )
    elif model.invalid_outputs:
        times = "once" if model.invalid_outputs == 1 else f"{model.invalid_outputs} times"
        yield printable(f"{model.id}: the numbers of an answer were wrong {times}")
    if _died(model.last_exit):
        yield printable(f"{model.id}: {_exit(model.last_exit)}")


def _sharing(sharers: list[SharerStatus]) -> str:
    """Whose turn is next, and what the first of those who share a model have and took."""
    parts = (
        f"{sharer.name or '(gateway)'} took {duration(sharer.cost_s)}, {sharer.active_requests} "
        f"run, {sharer.queue_depth} wait"
        for sharer in sharers[:_SHARERS]
    )
    more = f"; {len(sharers) - _SHARERS} more" if len(sharers) > _SHARERS else ""
    return f"shared, next turn first: {'; '.join(parts)}{more}"


def _proof(proof: CacheProofState) -> str:
    line = (
        f"of its cached prompts {proof.proven_tokens:,} tokens and the bytes of "
        f"{proof.proven_blocks:,} blocks were proven, the last at {_local(proof.last_at)}"
    )
    if proof.quarantined_blocks:
        line += f"; {proof.quarantined_blocks:,} blocks are in quarantine"
    return f"{line}; {proof.off}" if proof.off else line


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


def _memory_table(reading: Status) -> Table:
    """The table of memory, with a row for each worker and for each other holder."""
    table = memory_table(reading.models)
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
