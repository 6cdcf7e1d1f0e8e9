"""GET /api/tags, /api/ps and /api/version, POST /api/show."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from gateway import VERSION
from gateway.http.bodies import read_json
from gateway.http.callers import caller_of
from gateway.http.ollama.files import ModelFileReader, ModelFiles
from gateway.http.ollama.names import call_of, tagged
from gateway.http.openapi.operation import NAMES_MODEL, Described, Operation
from gateway.models.compartment import Compartment
from gateway.models.fleet import Fleet
from gateway.models.lifecycle import State

# The first with everything that is done here, which Codex asks for: it has `/v1/responses`.
_SPOKEN: Final = "0.13.4"
# What stands for "never" where a time must be.
_NEVER: Final = "9999-12-31T23:59:59Z"
_THINKING_WORDS: Final = ("enable_thinking", "reasoning_effort", "<think>")


class Details(Struct):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TaggedModel(Struct):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class TagList(Struct):
    models: list[TaggedModel]


class RunningModel(Struct):
    """`size` is what its process holds."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class RunningList(Struct):
    models: list[RunningModel]


class VersionBody(Struct):
    """`version` is that of Ollama whose API this is; `bulkhead` the gateway's own."""

    version: str
    bulkhead: str


class ShowBody(Struct):
    """`name` is what older clients send."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class Shown(Struct):
    license: str
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


async def tags(request: Request) -> Response:
    fleet: Fleet = request.app.state.fleet
    compartments = fleet.roster.visible(caller_of(request))
    found = await asyncio.gather(*(_files(request, each) for each in compartments))
    return _json(
        TagList([_tagged(each, files) for each, files in zip(compartments, found, strict=True)])
    )


async def running(request: Request) -> Response:
    fleet: Fleet = request.app.state.fleet
    visible = fleet.roster.visible(caller_of(request))
    loaded = [each for each in visible if each.state in (State.READY, State.DRAINING)]
    found = await asyncio.gather(*(_files(request, each) for each in loaded))
    return _json(
        RunningList([_running(each, files) for each, files in zip(loaded, found, strict=True)])
    )


async def show(request: Request) -> Response:
    body = await read_json(request, ShowBody)
    compartment = call_of(request, body.model or body.name).compartment
    files = await _files(request, compartment)
    return _json(
        Shown(
            license=files.license,
            modelfile=f"# Served by Bulkhead.\nFROM {tagged(compartment.model.id)}\n",
            parameters=f"num_ctx {_context_tokens(compartment, files)}",
            template=files.template,
            details=_details(files),
            model_info=_info(files),
            capabilities=_capabilities(compartment, files),
            modified_at=_time(files.modified_at),
        )
    )


async def version(_request: Request) -> Response:
    """Clients compare it to learn what they may send."""
    return _json(VersionBody(_SPOKEN, VERSION))


async def _files(request: Request, compartment: Compartment) -> ModelFiles:
    reader: ModelFileReader = request.app.state.model_files
    return await reader.look_up(compartment.model)


def _tagged(compartment: Compartment, files: ModelFiles) -> TaggedModel:
    name = tagged(compartment.model.id)
    return TaggedModel(
        name,
        name,
        _time(files.modified_at),
        files.size_bytes,
        files.digest,
        _details(files),
        _capabilities(compartment, files),
    )


def _running(compartment: Compartment, files: ModelFiles) -> RunningModel:
    name, worker = tagged(compartment.model.id), compartment.worker
    footprint = None if worker is None else worker.memory.footprint
    held_bytes = files.size_bytes if footprint is None else footprint.current_bytes
    left_s = compartment.model_memory.expires_in_s
    return RunningModel(
        name,
        name,
        held_bytes,
        files.digest,
        _details(files),
        _NEVER if math.isinf(left_s) else _time(time.time() + left_s),
        # A Mac's memory is one.
        held_bytes,
        _context_tokens(compartment, files),
    )


def _context_tokens(compartment: Compartment, files: ModelFiles) -> int:
    """That in force; before the model is loaded the one that it will have if memory allows."""
    if compartment.worker is not None and compartment.worker.report.context_tokens is not None:
        return compartment.worker.report.context_tokens
    configured = compartment.model.settings.context_tokens
    return min(configured, files.context_tokens or configured)


def _details(files: ModelFiles) -> Details:
    families = [files.family] if files.family else []
    return Details("", "mlx", files.family, families, files.parameter_size, files.quantization)


def _info(files: ModelFiles) -> dict[str, Any]:
    """Ollama's names, which are those of GGUF's metadata."""
    family = files.family or "unknown"
    known = {
        "general.architecture": family,
        "general.parameter_count": files.parameters,
        f"{family}.block_count": files.layers,
        f"{family}.context_length": files.context_tokens,
        f"{family}.embedding_length": files.embedding_length,
    }
    return {name: value for name, value in known.items() if value is not None}


def _capabilities(compartment: Compartment, files: ModelFiles) -> list[str]:
    """By what the model says of itself once it is loaded, else by its files."""
    abilities = compartment.traffic.abilities
    writes = "text" in abilities if abilities is not None else not files.encoder
    embeds = "embedding" in abilities if abilities is not None else files.encoder
    found = []
    if writes:
        found.append("completion")
        if compartment.model.settings.pictures:
            found.append("vision")
        if "tools" in files.template:
            found.append("tools")
        if any(word in files.template for word in _THINKING_WORDS):
            found.append("thinking")
    if embeds:
        found.append("embedding")
    return found


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _json(body: Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


_TAGS: Final = Operation(summary="The models", tag="Ollama", answer=TagList)
_PS: Final = Operation(summary="The models that are loaded", tag="Ollama", answer=RunningList)
_VERSION: Final = Operation(summary="Which API this is", tag="Ollama", answer=VersionBody)
_SHOW: Final = Operation(
    summary="A model", tag="Ollama", body=ShowBody, answer=Shown, refusals=NAMES_MODEL
)

routes = [
    Described("/api/tags", tags, _TAGS),
    Described("/api/ps", running, _PS),
    Described("/api/version", version, _VERSION),
    Described("/api/show", show, _SHOW, method="POST"),
]
