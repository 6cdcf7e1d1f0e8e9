"""A configuration's tables: the file's, with the environment and the flags over them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from gateway.config.mistakes import Mistake, ValueSource
from gateway.config.model_folders import model_from_flag
from gateway.config.settings import Flags
from gateway.config.tables import MODELS, label
from gateway.config.toml_file import (
    Locations,
    Place,
    TomlDocument,
    UnreadableFileError,
    read_document,
)


def chosen_file(flags: Flags, environment: Mapping[str, str]) -> tuple[Path, ValueSource | None]:
    """The file, and who names it; None: nobody, it is the platform's and need not exist."""
    if flags.config is not None:
        return flags.config, ValueSource("flag", "--config")
    if variable := environment.get("BULKHEAD_CONFIG"):
        return Path(variable), ValueSource("environment", "BULKHEAD_CONFIG")
    return platformdirs.user_config_path("bulkhead") / "config.toml", None


class Layers:
    """What is given, and where each value comes from.

    `file` is None if none was read, and `digest` tells its content from another. `left_out` has
    its lines that can't be read. Nothing was asked of the values, which may be of any kind.
    """

    def __init__(self, flags: Flags, environment: Mapping[str, str]) -> None:
        self.mistakes: list[Mistake] = []
        self.file: Path | None = None
        self.digest: str | None = None
        self._origins: dict[Place, ValueSource] = {}
        self._document = self._read_file(flags, environment)
        self.tables = self._document.tables
        self.left_out = self._document.left_out
        # A variable that is set to nothing is one that isn't set.
        variable = ValueSource("environment", "BULKHEAD_STATE_DIR")
        self._overlay(variable, "gateway", "state_dir", environment.get(variable.name) or None)
        flagged_dir = None if flags.state_dir is None else str(flags.state_dir)
        self._overlay(ValueSource("flag", "--state-dir"), "gateway", "state_dir", flagged_dir)
        self._overlay(ValueSource("flag", "--host"), "gateway", "host", flags.host)
        self._overlay(ValueSource("flag", "--port"), "gateway", "port", flags.port)
        self._overlay(
            ValueSource("flag", "--memory-budget"), "memory", "budget", flags.memory_budget
        )
        self._overlay(ValueSource("flag", "--spare"), "workers", "spare", flags.spare)
        for text in flags.models:
            self._add_model(text)

    def source(self, place: Place) -> ValueSource:
        """Where the value at `place` comes from, or what it is in."""
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
        """Put a value of the command line or the environment over the file's."""
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
