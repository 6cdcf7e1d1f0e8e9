"""What the doctor looks at: a configuration and what belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.config.mistakes import Mistake
from gateway.config.read import read_draft
from gateway.config.settings import Flags, Settings
from gateway.doctor.running import Running, look_for_gateway
from gateway.system.memory import device_info
from gateway.system.state_dir import StateDir, default_state_dir


class Installation:
    """Facts that several checks need are asked for once."""

    def __init__(self, flags: Flags, environment: Mapping[str, str]) -> None:
        draft = read_draft(flags, environment)
        self.settings: Settings = draft.settings
        self.mistakes: list[Mistake] = draft.mistakes
        self.config_file: Path | None = draft.file
        self.config_digest: str | None = draft.digest
        self.state_dir: StateDir = _state_dir(draft.settings)
        self._running: Running | None = None
        self._device: dict[str, Any] | None = None

    def running(self) -> Running:
        """The gateway that uses the state folder, and what is found at the address."""
        if self._running is None:
            self._running = look_for_gateway(self.settings.gateway, self.state_dir)
        return self._running

    def device(self) -> dict[str, Any]:
        """What MLX says of the device.

        Raises:
            OSError, ValueError, subprocess.SubprocessError: it can't be asked.
        """
        if self._device is None:
            self._device = device_info()
        return self._device


def _state_dir(settings: Settings) -> StateDir:
    try:
        return StateDir(Path(settings.gateway.state_dir or default_state_dir()))
    except RuntimeError:
        # It begins with the home of an account that isn't there, which is among the mistakes.
        return StateDir(default_state_dir())
