"""The settings that hold at present."""

from __future__ import annotations

from gateway.config.settings import Settings


class InForce:
    """Whoever needs a setting asks for it when it matters, so that a reload is felt at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
