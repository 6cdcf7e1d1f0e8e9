"""The check whether the gateway is as fast as this shell: launchd may throttle a service.

A service with another ProcessType than Interactive made 11 tokens/s instead of 87 (nix-ai#916);
the cause of other slow services is unknown (Rapid-MLX#1363). An agent that was Interactive took a
minute for a prompt of which a shell took some seconds, so prompts are measured, too.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Final

import httpx
import msgspec
import psutil
from msgspec import Struct

from gateway.config.model_folders import DEMO_FOLDER, DEMO_ID, locate
from gateway.config.model_settings import ModelSettings
from gateway.doctor.errands import run_errand
from gateway.doctor.finding import Finding, ok, warning
from gateway.doctor.installation import Installation, Running
from gateway.doctor.service import users_service
from gateway.http.wire.command_bodies import Status
from gateway.service.init_system import jobs
from gateway.system.memory import host_memory
from protocol.errands import Measure, Measured

_CHECK: Final = "throughput"
_PROMPT: Final = "Once upon a time"
_TOKENS: Final = 128
# The tokens of a long prompt, as far as the model's context and the time allow.
_LONG_TOKENS: Final = 8_000
_LONG_S: Final = 30.0
# The places of the context that a long prompt leaves free.
_SPARE_TOKENS: Final = 64
# The quickest of so many generations counts, since other work on the machine only slows them.
_TIMES: Final = 2
_LEAST_RATIO: Final = 0.5
_BUSY: Final = 0.5
_BUSY_LOOK_S: Final = 0.5
# The model may take this share of the available memory, since the shell loads it a second time.
_SHARE: Final = 0.5
_STATUS_S: Final = 10.0
_GENERATION_S: Final = 240.0
_SHELL_S: Final = 300.0
_OF_THE_SYSTEM: Final = "sudo bulkhead service install --system"
DEADLINE_S: Final = 2 * (3 + _TIMES) * _GENERATION_S + _SHELL_S


class SpeedComparison(Struct, frozen=True):
    """Tokens/s of one stream in the gateway and in this shell: of an answer, or of a prompt with
    `prompt_tokens` tokens. `beside` counts the other requests in the gateway, before or after the
    measurement. `busy` is the load of the processors before it, from 0 to 1.
    """

    model: str
    gateway: float
    shell: float
    beside: int
    busy: float
    prompt_tokens: int | None = None


class _ImpossibleError(Exception):
    """The comparison is impossible. `evidence` and `remedy` are sentences."""

    def __init__(self, evidence: str, remedy: str) -> None:
        super().__init__(evidence)
        self.evidence = evidence
        self.remedy = remedy


def look_at_throughput(installation: Installation) -> Iterator[Finding]:
    running = installation.running()
    try:
        speeds = _measure(installation, running)
    except _ImpossibleError as failure:
        yield warning(_CHECK, failure.evidence, failure.remedy)
    except (httpx.HTTPError, msgspec.MsgspecError) as failure:
        yield warning(
            _CHECK,
            f"The gateway at {running.url} didn't generate: {failure}.",
            "See `bulkhead status` and `bulkhead logs`.",
        )
    else:
        domains = [job.domain for job in jobs(users_service())] or ["an unknown domain"]
        for speed in speeds:
            yield judge_throughput(speed, domains if running.is_service else ())


def judge_throughput(speeds: SpeedComparison, domains: Sequence[str]) -> Finding:
    """Judge one speed. `domains` are those of the service that runs the gateway; empty if it was
    started by hand.
    """
    ratio = speeds.gateway / speeds.shell
    does = "makes" if speeds.prompt_tokens is None else f"reads {speeds.prompt_tokens:,} tokens at"
    how = f"as a service in {' and '.join(domains)}" if domains else "started by hand"
    evidence = (
        f"{speeds.model} {does} {speeds.gateway:.0f} tokens/s in the gateway ({how}) and "
        f"{speeds.shell:.0f} in this shell, a ratio of {ratio:.2f}."
    )
    if ratio >= _LEAST_RATIO:
        return ok(_CHECK, evidence)
    if speeds.beside or speeds.busy > _BUSY:
        return warning(
            _CHECK,
            f"{evidence} That proves little: there were {speeds.beside} other requests in the "
            f"gateway, and the processors were {speeds.busy:.0%} busy.",
            "Try again when gateway and machine are idle.",
        )
    if domains:
        other = "bulkhead service install" if "system" in domains else _OF_THE_SYSTEM
        return warning(
            _CHECK,
            f"{evidence} The service is throttled.",
            "`bulkhead service install` writes a definition with ProcessType Interactive, without "
            "which launchd throttles the GPU; then try again. If that doesn't help, uninstall it "
            f"and try `{other}`.",
        )
    return warning(
        _CHECK,
        f"{evidence} The gateway is throttled.",
        "Start it from a shell like this one, or as a service: `bulkhead service install`.",
    )


def _measure(installation: Installation, running: Running) -> tuple[SpeedComparison, ...]:
    """The speed of answers, and that of a long prompt."""
    if running.health is None:
        raise _ImpossibleError(
            "No gateway answers, so there is nothing to compare with.",
            "Start it in its usual way (`bulkhead service start`), then try again.",
        )
    with running.client(_GENERATION_S) as client:
        before = _status(client)
        model, source, python = _choose(before, installation.settings.models)
        busy = psutil.cpu_percent(_BUSY_LOOK_S) / 100
        earlier = _in_gateway(client, model)
        # The context is known once the model is loaded.
        context = {
            model_status.id: model_status.context_tokens for model_status in _status(client).models
        }[model]
        shell = _in_shell(source, python, _long_tokens(context))
        read = [_prefilled_in_gateway(client, model, shell)]
        later = _in_gateway(client, model)
        read.append(_prefilled_in_gateway(client, model, shell))
        beside = max(map(_requests, (before, _status(client))))
    tokens_per_s = _TOKENS / max(shell.seconds, 1e-6)
    long_tokens_per_s = shell.long_tokens / max(shell.long_seconds, 1e-6)
    return (
        SpeedComparison(model, max(earlier, later), tokens_per_s, beside, busy),
        SpeedComparison(model, max(read), long_tokens_per_s, beside, busy, shell.long_tokens),
    )


def _long_tokens(context_tokens: int | None) -> int:
    room = _LONG_TOKENS if context_tokens is None else context_tokens - _SPARE_TOKENS
    return max(1, min(_LONG_TOKENS, room))


def _choose(status: Status, configured: dict[str, ModelSettings]) -> tuple[str, str, str | None]:
    """The id, folder and interpreter of the smallest loaded model that fits into memory a second
    time. If there is none, those of the demo model, which is small.
    """
    room_bytes = host_memory().available_bytes * _SHARE
    ready = [
        model
        for model in status.models
        if model.state == "ready"
        and model.id in configured
        and model.estimate_bytes is not None
        and model.estimate_bytes < room_bytes
    ]
    for model in sorted(ready, key=lambda model: model.estimate_bytes or 0):
        try:
            return model.id, locate(configured[model.id].path), configured[model.id].interpreter
        except ValueError:
            continue
    if any(model_status.id == DEMO_ID for model_status in status.models):
        return DEMO_ID, str(DEMO_FOLDER), None
    raise _ImpossibleError(
        "The gateway has neither the demo model nor a configured one that is loaded and small "
        "enough to be loaded twice.",
        "Load one (`bulkhead load MODEL`), or add the demo model to the configuration.",
    )


def _in_gateway(client: httpx.Client, model: str) -> float:
    """The gateway's tokens/s. The first generation may load the model, and doesn't count."""
    _generate(client, model, 1)
    first_s = min(_generate(client, model, 1) for _ in range(_TIMES))
    all_s = min(_generate(client, model, 1 + _TOKENS) for _ in range(_TIMES))
    return _TOKENS / max(all_s - first_s, 1e-6)


def _prefilled_in_gateway(client: httpx.Client, model: str, shell: Measured) -> float:
    """The gateway's tokens/s of a long prompt. The prompt is new each time: the gateway caches
    those that it has computed.
    """
    short_s = _generate(client, model, 1)
    new = [secrets.choice(shell.prompt_ids) for _ in range(shell.long_tokens)]
    long_s = _generate(client, model, 1, new)
    return shell.long_tokens / max(long_s - short_s, 1e-6)


def _generate(
    client: httpx.Client, model: str, tokens: int, prompt: str | list[int] = _PROMPT
) -> float:
    """Generate, and return the seconds that it took. Raises: httpx.HTTPError."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    began = time.monotonic()
    client.post("/v1/completions", json=body).raise_for_status()
    return time.monotonic() - began


def _status(client: httpx.Client) -> Status:
    answer = client.get("/admin/v1/status", timeout=_STATUS_S).raise_for_status()
    return msgspec.json.decode(answer.content, type=Status)


def _requests(status: Status) -> int:
    return sum(model.active_requests + model.queue_depth for model in status.models)


def _in_shell(source: str, python: str | None, long_tokens: int) -> Measured:
    """Raises: _ImpossibleError: the generation failed."""
    asked = Measure(source, _PROMPT, 1 + _TOKENS, 2 * _TIMES, long_tokens, _LONG_S)
    outcome = run_errand("measure", asked, python, _SHELL_S)
    if outcome.failure is not None or not outcome.lines:
        raise _ImpossibleError(
            f"The same generation failed in this shell: {outcome.failure}.",
            "See the check `model`.",
        )
    return msgspec.json.decode(outcome.lines[-1], type=Measured)
