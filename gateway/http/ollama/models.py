"""Ollama's routes about models: GET /api/tags, /api/ps and /api/version, POST /api/show."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway import VERSION
from gateway.access.caller import Caller
from gateway.config.model import Model
from gateway.config.model_folders import find_folder
from gateway.config.model_settings import ModelSettings
from gateway.http.ollama.bodies import call_of, tagged
from gateway.http.passing.pass_on import passing_to_bulkheads
from gateway.http.wire.auth import caller_of
from gateway.http.wire.bodies import json_response, read_json
from gateway.http.wire.openapi import NAMES_MODEL, Operation, Routes
from gateway.models.fleet import Fleet
from gateway.models.lifecycle import State
from gateway.models.model_supervisor import ModelSupervisor
from gateway.system.lane import Lane
from gateway.upstreams.upstreams import Way
from protocol.encoders import encoder_of
from protocol.model_files import read_config, read_file, read_header
from protocol.model_folder import templates_of, weight_files

model_routes = Routes("Ollama")

# Seconds that a listing waits for the facts in the files of one model.
_ANSWER_S: Final = 2.0
_LONGEST_TEXT_BYTES: Final = 1 << 20
_BITS_OF_WORD: Final = 32
_LARGEST_NUMBER: Final = 1 << 53
_UNPACKED: Final = (".scales", ".biases")


class ModelFiles(Struct, frozen=True):
    """Facts from the files of a model. `digest` changes with the names, sizes and times of the
    files. `quantization` tells the bits of a quantized weight, or else the type of most weights.
    """

    digest: str = "0" * 64
    size_bytes: int = 0
    modified_at: float = 0.0
    family: str = ""
    parameters: int = 0
    quantization: str = ""
    layers: int | None = None
    context_tokens: int | None = None
    embedding_length: int | None = None
    encoder: bool = False
    template: str = ""
    license: str = ""

    @property
    def parameter_size(self) -> str:
        """The number of parameters as people write it, such as 8.0B."""
        for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
            if self.parameters >= size:
                return f"{self.parameters / size:.1f}{unit}"
        return str(self.parameters) if self.parameters else ""


class ModelFileReader:
    """Reads facts from the files of models, and reads them again only if the files have changed.
    Each source has a lane of its own, so a disk that hangs delays no model of another source.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}
        self._known: dict[str, ModelFiles] = {}

    async def look_up(self, model: Model) -> ModelFiles:
        """The facts from the model's files. If the files can't be read in time, the facts that were
        read before, or defaults.
        """
        known = self._known.get(model.source)
        lane = self._lanes.setdefault(model.source, Lane(f"files of {model.id}"))
        try:
            files = await lane.run(lambda: _read(model.source, known), _ANSWER_S, model.source)
        except (OSError, ValueError):
            return known or ModelFiles()
        self._known[model.source] = files
        return files


def _read(source: str, known: ModelFiles | None) -> ModelFiles:
    folder = find_folder(source)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    states = [(file.name, file.stat()) for file in files]
    listed = json.dumps([(name, state.st_size, state.st_mtime_ns) for name, state in states])
    digest = hashlib.sha256(listed.encode()).hexdigest()
    if known is not None and known.digest == digest:
        return known
    config = read_config(folder)
    text = {**config, **(config.get("text_config") or {})}
    parameters, kind = _count(weight_files(folder), _quantization(config))
    return ModelFiles(
        digest=digest,
        size_bytes=sum(state.st_size for _, state in states),
        modified_at=max(state.st_mtime for _, state in states),
        family=_encodable(config.get("model_type")),
        parameters=min(parameters, _LARGEST_NUMBER),
        quantization=f"{bits}-bit" if (bits := _quantization(config)) else kind,
        layers=_number(text, "num_hidden_layers"),
        context_tokens=_number(text, "max_position_embeddings"),
        embedding_length=_number(text, "hidden_size"),
        encoder=encoder_of(config) is not None,
        template=_encodable(templates_of(folder).text),
        license=_text(folder / "LICENSE"),
    )


def _quantization(config: Mapping[str, Any]) -> int | None:
    section = config.get("quantization")
    return _number(section, "bits") if isinstance(section, dict) else None


def _count(files: list[Path], bits: int | None) -> tuple[int, str]:
    """The number of parameters, and the type of most parameters. `bits` are the bits of a quantized
    parameter, several of which share a word; None: the parameters are not quantized.
    """
    kinds: dict[str, int] = {}
    for path in files:
        for name, tensor in read_header(path).tensors.items():
            if bits and name.endswith(_UNPACKED):
                continue
            count, kind = prod(tensor.shape), _encodable(tensor.dtype)
            if bits and kind == "U32":
                count = count * _BITS_OF_WORD // bits
            kinds[kind] = kinds.get(kind, 0) + count
    most = max(kinds, key=lambda item: kinds[item], default="")
    return sum(kinds.values()), most


def _text(path: Path) -> str:
    """The text of a file. Empty: the file is missing or too long."""
    try:
        return read_file(path, _LONGEST_TEXT_BYTES).decode(errors="replace")
    except (FileNotFoundError, ValueError):
        return ""


def _encodable(text: object) -> str:
    """A text of a JSON file, without lone surrogates, which can't be encoded. Empty: no text."""
    return text.encode(errors="replace").decode() if isinstance(text, str) else ""


def _number(table: Mapping[str, Any], key: str) -> int | None:
    value = table.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value < _LARGEST_NUMBER else None


# The first version of Ollama with all that works here. For `/v1/responses` Codex needs this one.
_SPOKEN: Final = "0.13.4"
# A time that stands for "never".
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
    """`size` is the footprint of the model's process."""

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
    """`version` is the version of Ollama whose API this is, `bulkhead` that of the gateway."""

    version: str
    bulkhead: str


class NamedModelBody(Struct):
    """Older clients send `name` instead of `model`."""

    model: str | None = None
    name: str | None = None


class Shown(Struct):
    license: str
    modelfile: str
    parameters: str
    template: str
    system: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


def _offered(fleet: Fleet, caller: Caller) -> list[ModelSupervisor]:
    """The models that answer on Ollama's paths."""
    return [model for model in fleet.roster.visible(caller) if not model.model.is_command]


@model_routes.get("/api/tags", Operation("The models", answer=TagList, reads=True))
async def tags(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    supervisors = _offered(fleet, caller_of(request))
    facts = await asyncio.gather(*(_files(request, supervisor) for supervisor in supervisors))
    listed = [_tagged(model, files) for model, files in zip(supervisors, facts, strict=True)]
    ways = fleet.upstreams.visible(caller_of(request))
    listed += [_tagged_there(way) for way in ways if way.upstream.of_bulkhead]
    return json_response(TagList(listed))


@model_routes.get(
    "/api/ps", Operation("The models that are loaded", answer=RunningList, reads=True)
)
async def running(request: HttpRequest) -> Response:
    fleet: Fleet = request.app.state.fleet
    offered = _offered(fleet, caller_of(request))
    loaded = [model for model in offered if model.state in (State.READY, State.DRAINING)]
    facts = await asyncio.gather(*(_files(request, model) for model in loaded))
    return json_response(
        RunningList([_running(model, files) for model, files in zip(loaded, facts, strict=True)])
    )


@model_routes.post(
    "/api/show",
    Operation("A model", body=NamedModelBody, answer=Shown, refusals=NAMES_MODEL, counts=False),
)
@passing_to_bulkheads(streams=False)
async def show(request: HttpRequest) -> Response:
    body = await read_json(request, NamedModelBody)
    supervisor = call_of(request, body.model or body.name).supervisor
    files = await _files(request, supervisor)
    settings = supervisor.model.settings
    return json_response(
        Shown(
            license=files.license,
            modelfile=f"# Served by Bulkhead.\nFROM {tagged(supervisor.model.id)}\n",
            parameters=_parameters(settings, _context_tokens(supervisor, files)),
            template=files.template,
            system=settings.system or "",
            details=_details(files),
            model_info=_info(supervisor, files),
            capabilities=_capabilities(supervisor, files),
            modified_at=_time(files.modified_at),
        )
    )


def _parameters(settings: ModelSettings, context_tokens: int) -> str:
    """A line for each parameter, with Ollama's name."""
    lines = {"num_ctx": context_tokens, **settings.defaults.given}
    if "repetition_penalty" in lines:
        lines["repeat_penalty"] = lines.pop("repetition_penalty")
    return "\n".join(f"{name} {value}" for name, value in lines.items())


@model_routes.get("/api/version", Operation("Which API this is", answer=VersionBody, reads=True))
async def version(_request: HttpRequest) -> Response:
    """Answer with the versions. Clients decide by Ollama's version which fields they send."""
    return json_response(VersionBody(_SPOKEN, VERSION))


async def _files(request: HttpRequest, supervisor: ModelSupervisor) -> ModelFiles:
    reader: ModelFileReader = request.app.state.model_files
    return await reader.look_up(supervisor.model)


def _tagged(supervisor: ModelSupervisor, files: ModelFiles) -> TaggedModel:
    name = tagged(supervisor.model.id)
    return TaggedModel(
        name,
        name,
        _time(files.modified_at),
        files.size_bytes,
        files.digest,
        _details(files),
        _capabilities(supervisor, files),
    )


def _tagged_there(way: Way) -> TaggedModel:
    """A model of another Bulkhead. Its files are there, and so are the facts in them."""
    name, offer, files = tagged(way.id), way.offer, ModelFiles()
    assert offer is not None
    capabilities = []
    if offer.abilities is None or "text" in offer.abilities:
        capabilities.append("completion")
        if "image" in (offer.input_modalities or ()):
            capabilities.append("vision")
    if "embedding" in (offer.abilities or ()):
        capabilities.append("embedding")
    digest, details = files.digest, _details(files)
    return TaggedModel(
        name, name, _time(files.modified_at), files.size_bytes, digest, details, capabilities
    )


def _running(supervisor: ModelSupervisor, files: ModelFiles) -> RunningModel:
    name, worker = tagged(supervisor.model.id), supervisor.worker
    footprint = None if worker is None else worker.memory.footprint
    held_bytes = files.size_bytes if footprint is None else footprint.current_bytes
    left_s = supervisor.model_memory.expires_in_s
    return RunningModel(
        name,
        name,
        held_bytes,
        files.digest,
        _details(files),
        _NEVER if math.isinf(left_s) else _time(time.time() + left_s),
        # On a Mac the CPU and the GPU share one memory.
        held_bytes,
        _context_tokens(supervisor, files),
    )


def _context_tokens(supervisor: ModelSupervisor, files: ModelFiles) -> int:
    """The context in force; before a load the context that the model gets if memory allows."""
    if supervisor.worker is not None and supervisor.worker.report.context_tokens is not None:
        return supervisor.worker.report.context_tokens
    configured = supervisor.model.settings.context_tokens
    return min(configured, files.context_tokens or configured)


def _details(files: ModelFiles) -> Details:
    families = [files.family] if files.family else []
    return Details("", "mlx", files.family, families, files.parameter_size, files.quantization)


def _info(supervisor: ModelSupervisor, files: ModelFiles) -> dict[str, Any]:
    """The facts under the names of GGUF metadata, as Ollama gives them. Clients show the basename,
    and cut their prompts to the context, so they get the one in force.
    """
    family = files.family or "unknown"
    known = {
        "general.architecture": family,
        "general.basename": supervisor.model.id,
        "general.parameter_count": files.parameters,
        f"{family}.block_count": files.layers,
        f"{family}.context_length": _context_tokens(supervisor, files),
        f"{family}.embedding_length": files.embedding_length,
    }
    return {name: value for name, value in known.items() if value is not None}


def _capabilities(supervisor: ModelSupervisor, files: ModelFiles) -> list[str]:
    """The capabilities of the model in Ollama's words. The worker reports whether the model makes
    text or vectors; before a load the files show this. The configuration says whether the model
    takes pictures, and the chat template whether it calls tools and thinks.
    """
    abilities = supervisor.traffic.abilities
    writes = "text" in abilities if abilities is not None else not files.encoder
    embeds = "embedding" in abilities if abilities is not None else files.encoder
    capabilities = []
    if writes:
        capabilities.append("completion")
        if supervisor.model.settings.pictures:
            capabilities.append("vision")
        if "tools" in files.template:
            capabilities.append("tools")
        if any(word in files.template for word in _THINKING_WORDS):
            capabilities.append("thinking")
    if embeds:
        capabilities.append("embedding")
    return capabilities


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
