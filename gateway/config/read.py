"""File, environment and flags to one `Settings`; every mistake at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from gateway.config.models import model_from_flag
from gateway.config.settings import ConfigError, Flags, ModelSettings, Section, Settings
from gateway.config.sizes import parse_size


def read_settings(flags: Flags, environment: Mapping[str, str]) -> Settings:
    """The configuration in force: flags go before the environment, and that before the file.

    Raises:
        ConfigError: with every mistake found.
    """
    path, required = _config_path(flags, environment)
    mistakes: list[str] = []
    tables = _read_file(path, required=required)
    _overlay(tables, flags, environment)
    models = tables.get("models", {})
    if isinstance(models, dict):
        _add_models_of_flags(models, flags, mistakes)
        tables["models"] = models
    settings = _convert(tables, path, mistakes)
    if settings is not None:
        _check_values(settings, path, mistakes)
    if mistakes or settings is None:
        raise ConfigError(mistakes)
    return settings


def _config_path(flags: Flags, environment: Mapping[str, str]) -> tuple[Path, bool]:
    if flags.config is not None:
        return flags.config, True
    if "BULKHEAD_CONFIG" in environment:
        return Path(environment["BULKHEAD_CONFIG"]), True
    return platformdirs.user_config_path("bulkhead") / "config.toml", False


def _read_file(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError([f"There is no configuration file {path}."]) from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError([f"{path} can't be read: {error}"]) from error


def _overlay(tables: dict[str, Any], flags: Flags, environment: Mapping[str, str]) -> None:
    state_dir = flags.state_dir or environment.get("BULKHEAD_STATE_DIR")
    for table, key, value in (
        ("gateway", "host", flags.host),
        ("gateway", "port", flags.port),
        ("gateway", "state_dir", None if state_dir is None else str(state_dir)),
        ("memory", "budget", flags.memory_budget),
        ("workers", "spare", flags.spare),
    ):
        if value is not None and isinstance(section := tables.setdefault(table, {}), dict):
            section[key] = value


def _add_models_of_flags(models: dict[str, Any], flags: Flags, mistakes: list[str]) -> None:
    for text in flags.models:
        model_id, source = model_from_flag(text)
        if model_id in models:
            mistakes.append(
                f"Two models have the id {model_id!r}: give one of them another, as in "
                f"--model {source}=OTHER_ID."
            )
        models[model_id] = {"path": source}


def _convert(tables: dict[str, Any], path: Path, mistakes: list[str]) -> Settings | None:
    """Convert key by key, since msgspec stops at a document's first mistake."""
    known = {each.encode_name: each.type for each in msgspec.structs.fields(Settings)}
    sections: dict[str, Any] = {}
    for name, table in tables.items():
        if name not in known:
            mistakes.append(f"{path}: unknown table [{name}]; known are {', '.join(known)}.")
        elif not isinstance(table, dict):
            mistakes.append(f"{path}: {name} must be a table, as in [{name}].")
        elif name == "models":
            sections[name] = {
                model_id: _convert_section(
                    ModelSettings, values, f'models."{model_id}"', path, mistakes
                )
                for model_id, values in table.items()
            }
        else:
            sections[name] = _convert_section(known[name], table, name, path, mistakes)
    return None if mistakes else Settings(**sections)


def _convert_section(
    kind: type[Section], table: object, name: str, path: Path, mistakes: list[str]
) -> Section | None:
    if not isinstance(table, dict):
        mistakes.append(f"{path}: {name} must be a table, as in [{name}].")
        return None
    fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    values = {}
    before = len(mistakes)
    for key, value in table.items():
        if key not in fields:
            mistakes.append(f"{path}: {name}.{key} is unknown; known are {', '.join(fields)}.")
            continue
        try:
            values[key] = msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            mistakes.append(f"{path}: {name}.{key} = {value!r}: {error}.")
    mistakes.extend(
        f"{path}: {name}.{key} is missing."
        for key, each in fields.items()
        if each.required and key not in table
    )
    return kind(**values) if len(mistakes) == before else None


def _check_values(settings: Settings, path: Path, mistakes: list[str]) -> None:
    for key, value in (
        ("budget", settings.memory.budget),
        ("headroom", settings.memory.headroom),
    ):
        if (key, value) == ("budget", "auto"):
            continue
        try:
            parse_size(value, total_bytes=1 if key == "budget" else None)
        except ValueError as error:
            mistakes.append(f"{path}: memory.{key}: {error}.")
    taken: dict[str, str] = {model_id: model_id for model_id in settings.models}
    for model_id, model in settings.models.items():
        for alias in model.aliases:
            if alias in taken:
                mistakes.append(
                    f"{path}: the alias {alias!r} of {model_id!r} already names {taken[alias]!r}."
                )
            taken[alias] = model_id
