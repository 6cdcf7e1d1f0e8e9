"""File, environment and flags to one `Settings`; every mistake at once."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import platformdirs

from gateway.config.models import model_from_flag
from gateway.config.settings import ConfigError, Flags, ModelSettings, Section, Settings
from gateway.config.sizes import parse_size

# File names have 255 bytes on either system, and a suffix follows.
_LONGEST_ID: Final = 200


def read_settings(flags: Flags, environment: Mapping[str, str]) -> Settings:
    """The configuration in force: flags go before the environment, and that before the file.

    Raises:
        ConfigError: with every mistake found.
    """
    path, required = _config_path(flags, environment)
    draft = _Draft(path, _read_file(path, required=required))
    # A variable that is set to nothing is one that isn't set.
    state_dir = environment.get("BULKHEAD_STATE_DIR") or None
    draft.overlay("BULKHEAD_STATE_DIR", "gateway", "state_dir", state_dir)
    flagged_dir = None if flags.state_dir is None else str(flags.state_dir)
    draft.overlay("--state-dir", "gateway", "state_dir", flagged_dir)
    draft.overlay("--host", "gateway", "host", flags.host)
    draft.overlay("--port", "gateway", "port", flags.port)
    draft.overlay("--memory-budget", "memory", "budget", flags.memory_budget)
    draft.overlay("--spare", "workers", "spare", flags.spare)
    for text in flags.models:
        draft.add_model(*model_from_flag(text))
    return draft.settings()


def config_in_force(flags: Flags, environment: Mapping[str, str]) -> Path:
    """The file that `read_settings` reads; the default one need not exist."""
    return _config_path(flags, environment)[0]


def _config_path(flags: Flags, environment: Mapping[str, str]) -> tuple[Path, bool]:
    if flags.config is not None:
        return flags.config, True
    if path := environment.get("BULKHEAD_CONFIG"):
        return Path(path), True
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


class _Draft:
    """Tables on their way to settings, where each value came from, and what is wrong."""

    def __init__(self, path: Path, tables: dict[str, Any]) -> None:
        self._path = path
        self._tables = tables
        self._origins: dict[str, str] = {}
        self._mistakes: list[str] = []

    def overlay(self, origin: str, table: str, key: str, value: object) -> None:
        """Put a value of the command line or the environment over the file's."""
        if value is None:
            return
        section = self._tables.setdefault(table, {})
        if isinstance(section, dict):
            section[key] = value
            self._origins[f"{table}.{key}"] = origin

    def add_model(self, model_id: str, source: str) -> None:
        models = self._tables.setdefault("models", {})
        if not isinstance(models, dict):
            return
        if model_id in models:
            self._mistakes.append(
                f"Two models have the id {model_id!r}: give one of them another, as in "
                f"--model {source}=OTHER_ID."
            )
        models[model_id] = {"path": source}

    def settings(self) -> Settings:
        """The settings, or a ConfigError with every mistake.

        Keys are converted one by one, since msgspec stops at a document's first mistake.
        """
        known = {each.encode_name: each.type for each in msgspec.structs.fields(Settings)}
        sections: dict[str, Any] = {}
        for name, table in self._tables.items():
            if name not in known:
                self._complain(name, f"unknown table; known are {', '.join(known)}")
            elif not isinstance(table, dict):
                self._complain(name, f"it must be a table, as in [{name}]")
            elif name == "models":
                sections[name] = {
                    model_id: self._section(ModelSettings, values, f'models."{model_id}"')
                    for model_id, values in table.items()
                }
            else:
                sections[name] = self._section(known[name], table, name)
        if not self._mistakes:
            settings = Settings(**sections)
            self._check_sizes(settings)
            self._check_ids(settings)
            self._check_aliases(settings)
        if self._mistakes:
            raise ConfigError(self._mistakes)
        return settings

    def _section(self, kind: type[Section], table: object, name: str) -> Section | None:
        if not isinstance(table, dict):
            self._complain(name, f"it must be a table, as in [{name}]")
            return None
        fields = {each.encode_name: each for each in msgspec.structs.fields(kind)}
        values = {}
        before = len(self._mistakes)
        for key, value in table.items():
            if key not in fields:
                self._complain(f"{name}.{key}", f"unknown key; known are {', '.join(fields)}")
                continue
            try:
                values[key] = msgspec.convert(value, fields[key].type)
            except msgspec.ValidationError as error:
                self._complain(f"{name}.{key}", f"{value!r}: {error}")
        for key, field in fields.items():
            if field.required and key not in table:
                self._complain(f"{name}.{key}", "it is missing")
        return kind(**values) if len(self._mistakes) == before else None

    def _check_sizes(self, settings: Settings) -> None:
        memory = settings.memory
        for key, value, total in (
            ("budget", memory.budget, 1),
            ("headroom", memory.headroom, None),
        ):
            if (key, value) == ("budget", "auto"):
                continue
            try:
                parse_size(value, total)
            except ValueError as error:
                self._complain(f"memory.{key}", str(error))

    def _check_ids(self, settings: Settings) -> None:
        for model_id in settings.models:
            if not 0 < len(quote(model_id, safe="")) <= _LONGEST_ID:
                self._complain(
                    f'models."{model_id[:40]}"',
                    f"an id has 1 to {_LONGEST_ID} characters, as log files are named after it "
                    "(others than ASCII count several times)",
                )

    def _check_aliases(self, settings: Settings) -> None:
        taken = {model_id: model_id for model_id in settings.models}
        for model_id, model in settings.models.items():
            for alias in model.aliases:
                if alias in taken:
                    self._complain(
                        f'models."{model_id}".aliases', f"{alias!r} already names {taken[alias]!r}"
                    )
                taken[alias] = model_id

    def _complain(self, key: str, what: str) -> None:
        self._mistakes.append(f"{self._origins.get(key, f'{self._path}: {key}')}: {what}.")
