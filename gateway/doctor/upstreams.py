"""The check of the upstreams: whether each answers, takes the key, and isn't this gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from gateway.config.model_settings import UpstreamSettings
from gateway.doctor.finding import Finding, Severity, error, ok, warning
from gateway.doctor.installation import Installation
from gateway.service.status import PortHealth
from gateway.system.events import EventLog
from gateway.system.http_client import AnswerError, Question
from gateway.system.tls import distrust
from gateway.upstreams.offers import CycleError, Offer
from gateway.upstreams.route import new_instance
from gateway.upstreams.upstream import KeyNotTakenError, Upstream

_UPSTREAMS: Final = "upstreams"
_HEALTH_S: Final = 3.0
_MOST_HEALTH_BYTES: Final = 1 << 20


class UpstreamAnswer(Struct, frozen=True):
    """An upstream's models, and the version if it is another Bulkhead."""

    offers: list[Offer]
    version: str | None


def look_at_upstreams(installation: Installation) -> Iterator[Finding]:
    upstreams = installation.settings.upstreams
    if not upstreams:
        yield ok(_UPSTREAMS, "The configuration names no other server.")
        return
    running = installation.running()
    instance = None if running.status is None else running.status.instance
    for name, answer in asyncio.run(_ask_all(upstreams, instance)).items():
        finding = judge_upstream(name, upstreams[name], answer)
        of_gateway = running.refused.get(name)
        if finding.severity is Severity.OK and of_gateway is not None:
            finding = judge_refusal(name, of_gateway)
        yield finding


async def _ask_all(
    upstreams: dict[str, UpstreamSettings], instance: str | None
) -> dict[str, UpstreamAnswer | Exception]:
    answers = await asyncio.gather(
        *(_ask(name, upstream, instance or new_instance()) for name, upstream in upstreams.items())
    )
    return dict(zip(upstreams, answers, strict=True))


async def _ask(name: str, settings: UpstreamSettings, instance: str) -> UpstreamAnswer | Exception:
    """What the upstream answers to the gateway with this instance, or why there is no answer."""
    upstream = Upstream(name, settings, instance, EventLog())
    try:
        return UpstreamAnswer(await upstream.fetch(), await _version(upstream))
    except (OSError, AnswerError, ValueError) as failure:
        return failure
    finally:
        upstream.close()


async def _version(upstream: Upstream) -> str | None:
    """The version of another Bulkhead; None: it is another server, or tells nothing in time."""
    question = Question(b"GET", upstream.target(b"/health"), upstream.secrets())
    body = bytearray()
    try:
        async with asyncio.timeout(_HEALTH_S):
            answer = await upstream.client.ask(question, _HEALTH_S)
            try:
                while len(body) < _MOST_HEALTH_BYTES and (piece := await answer.read(_HEALTH_S)):
                    body += piece
            finally:
                answer.close()
        return msgspec.json.decode(body, type=PortHealth).version
    except (TimeoutError, AnswerError, msgspec.MsgspecError):
        return None


def judge_upstream(
    name: str, settings: UpstreamSettings, answer: UpstreamAnswer | Exception
) -> Finding:
    if isinstance(answer, Exception):
        reason = str(answer).rstrip(".")
        return error(_UPSTREAMS, f"It {reason}.", _remedy(settings, answer), subject=name)
    what = "a server" if answer.version is None else f"Bulkhead {answer.version}"
    if not answer.offers:
        return warning(
            _UPSTREAMS,
            f"{settings.url} answers ({what}), and lists no model.",
            "Let its operator see which models it serves, and which of them this gateway's key "
            "may use.",
            subject=name,
        )
    ready = sum(offer.state == "ready" for offer in answer.offers)
    loaded = "" if answer.version is None else f", of which {ready} ready"
    count = len(answer.offers)
    models = f"{count} model{'' if count == 1 else 's'}{loaded}"
    return ok(_UPSTREAMS, f"{settings.url} answers ({what}): {models}.", subject=name)


def judge_refusal(name: str, reason: str) -> Finding:
    """The finding for an upstream that answers the doctor, while the running gateway sends it no
    requests. `reason` is the gateway's.
    """
    return error(
        _UPSTREAMS,
        f"It answers the doctor, but the running gateway sends it no requests: "
        f"{reason.rstrip('.')}.",
        "Try again in a minute. If it stays so, see the log there; on macOS also docs/hosts.md, as "
        "the system may keep a service from the local network.",
        subject=name,
    )


def _remedy(settings: UpstreamSettings, failure: Exception) -> str:
    if isinstance(failure, CycleError):
        return "Take this table out of the configuration: the models are served here already."
    if isinstance(failure, KeyNotTakenError):
        return (
            "Have its operator make a key (on a Bulkhead `bulkhead key add NAME`), and write it "
            f"into {settings.key_file or 'a file that key_file names'}, with mode 0600."
        )
    if distrust(failure) is not None or isinstance(failure, ssl.SSLError):
        return (
            "Let certificate name a copy of the server's certificate, or of the authority that has "
            "signed it, and let url have a name that the certificate has."
        )
    if isinstance(failure, AnswerError | TimeoutError):
        return (
            f"Start the server, and try `curl {settings.url.rstrip('/')}/models` from this "
            "machine. Another address belongs into url."
        )
    if isinstance(failure, OSError):
        return "Correct key_file and certificate: this account must be able to read both."
    return "Correct url: it is the address of OpenAI's API there, which ends with /v1 mostly."
