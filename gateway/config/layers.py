"""The tables of a configuration, the sources of their values, and mistakes in the values.

An environment variable overrides the file, and a flag overrides both.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import platformdirs
from msgspec import Struct

from gateway.config.key import Key, toml_text
from gateway.config.model_folders import model_from_flag
from gateway.config.settings import Flags
from gateway.config.tables import HEADINGS, MODELS, keys_of, label
from gateway.config.toml_file import TomlDocument, UnreadableFileError, read_document
from gateway.config.toml_locations import Locations, Place
from gateway.system.notation import nearest


class ValueSource(Struct, frozen=True):
    """The source of a value. `name` is the name of a file, a variable or a flag. `line` is the
    number of a line in the file; the first line is 1.
    """

    kind: Literal["default", "file", "environment", "flag"]
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        if self.kind == "default":
            return self.kind
        return self.name if self.line is None else f"{self.name}:{self.line}"


class Mistake(Struct, frozen=True):
    """A mistake in the configuration. `key` is empty if the mistake can't be traced to a key, as in
    a file that isn't TOML.
    """

    source: ValueSource
    key: str
    message: str

    def __str__(self) -> str:
        parts = (str(self.source), self.key, self.message)
        return ": ".join(part for part in parts if part)


class ConfigError(Exception):
    """All mistakes in the configuration."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


_SHOWN_CHARACTERS: Final = 40
# For each key the heading of its table.
_HOMES: Final = {
    name: heading for heading, section in HEADINGS.items() for name in keys_of(section)
}


def sentence(message: str) -> str:
    """The message with a full stop at its end, unless it has one or a question mark."""
    return message if message.endswith((".", "?")) else f"{message}."


def no_table(place: Place) -> str:
    return f"expected a table, as in [{label(place)}]"


def missing(key: Key) -> str:
    return f"it is missing; expected {key.expected}"


def unexpected(expected: str, value: object) -> str:
    return f"expected {expected}, not {_shown(value)}"


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name, whose `kind` is "table" or "key". The message has the
    likeliest known name, or all known names.
    """
    if name in _HOMES:
        return f"unknown here; it is a key of {_HOMES[name]}"
    part_of = (other for other in known if name in other.split("_"))
    if meant := nearest(name, known) or next(part_of, None):
        return f"unknown {kind}; did you mean {meant}?"
    if meant := nearest(name, _HOMES):
        return f"unknown {kind}; did you mean {meant} in {_HOMES[meant]}?"
    return f"unknown {kind}; known are {', '.join(known)}"


def _shown(value: object) -> str:
    """A value as TOML writes it, shortened."""
    match value:
        case str():
            shown = toml_text(value)
        case bool():
            shown = str(value).lower()
        case dict():
            shown = "a table"
        case list():
            shown = "a list"
        case int() if abs(value) >= 10**_SHOWN_CHARACTERS:
            shown = "so large a number"
        case _:
            shown = str(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."


def chosen_file(flags: Flags, environment: Mapping[str, str]) -> tuple[Path, ValueSource | None]:
    """The configuration file, and the flag or variable that names the file. None: no flag or
    variable does. The file is then the platform's default file, and need not exist.
    """
    if flags.config is not None:
        return flags.config, ValueSource("flag", "--config")
    if variable := environment.get("BULKHEAD_CONFIG"):
        return Path(variable), ValueSource("environment", "BULKHEAD_CONFIG")
    return platformdirs.user_config_path("bulkhead") / "config.toml", None


class Layers:
    """All values that are given, unchecked, and the source of each value.

    `file` is the file that was read, or None. `digest` is the hash of its content. `left_out` has
    the lines of the file that aren't TOML.
    """

    def __init__(self, flags: Flags, environment: Mapping[str, str]) -> None:
        self.mistakes: list[Mistake] = []
        self.file: Path | None = None
        self.digest: str | None = None
        self._origins: dict[Place, ValueSource] = {}
        self._document = self._read_file(flags, environment)
        self.tables = self._document.tables
        self.left_out = self._document.left_out
        # A variable that is empty counts as not set.
        variable = ValueSource("environment", "BULKHEAD_STATE_DIR")
        self._overlay(variable, "gateway", "state_dir", environment.get(variable.name) or None)
        flagged_dir = None if flags.state_dir is None else str(flags.state_dir)
        for name, table, key, value in (
            ("--state-dir", "gateway", "state_dir", flagged_dir),
            ("--host", "gateway", "host", flags.host),
            ("--port", "gateway", "port", flags.port),
            ("--memory-budget", "memory", "budget", flags.memory_budget),
            ("--spare", "workers", "spare", flags.spare),
        ):
            self._overlay(ValueSource("flag", name), table, key, value)
        for text in flags.models:
            self._add_model(text)

    def source(self, place: Place) -> ValueSource:
        """The source of the value at `place`: the flag or variable that gave the value or its
        table. Otherwise it is the file, with the line of the value, or of its table.
        """
        for length in range(len(place), 0, -1):
            if origin := self._origins.get(place[:length]):
                return origin
        return ValueSource("file", str(self.file), self._locations.line(place))

    def _read_file(self, flags: Flags, environment: Mapping[str, str]) -> TomlDocument:
        path, named_by = chosen_file(flags, environment)
        try:
            document = read_document(path)
        except FileNotFoundError:
            if named_by is not None:
                self.mistakes.append(Mistake(named_by, "", f"There is no file {path}."))
            return TomlDocument("", {}, {})
        except UnreadableFileError as error:
            self.mistakes.append(Mistake(ValueSource("file", str(path)), "", f"{error}."))
            return TomlDocument("", {}, {})
        self.file = path
        self.digest = hashlib.sha256(document.text.encode()).hexdigest()
        for line, message in document.broken.items():
            self.mistakes.append(Mistake(ValueSource("file", str(path), line), "", f"{message}."))
        return document

    def _overlay(self, origin: ValueSource, table: str, key: str, value: object) -> None:
        """Put `value`, of a flag or variable, in place of the file's value, unless it is None."""
        if value is None:
            return
        section = self.tables.setdefault(table, {})
        if isinstance(section, dict):
            section[key] = value
            self._origins[table, key] = origin

    def _add_model(self, text: str) -> None:
        model_id, path = model_from_flag(text)
        models = self.tables.setdefault(MODELS, {})
        if not isinstance(models, dict):
            return
        flag = ValueSource("flag", f"--model {text}")
        if _path_of(models.get(model_id)) == path:
            return
        if model_id in models:
            self.mistakes.append(
                Mistake(
                    flag,
                    label((MODELS, model_id)),
                    f"two models have this id: give one of them another, as in "
                    f"--model {path}=OTHER_ID.",
                )
            )
            return
        models[model_id] = {"path": path}
        self._origins[MODELS, model_id] = flag

    @functools.cached_property
    def _locations(self) -> Locations:
        return Locations(self._document.text)


def _path_of(model: object) -> object:
    return model.get("path") if isinstance(model, dict) else None
