"""Other machines."""

from __future__ import annotations

from typing import Annotated

from gateway.config.kinds import Text, text
from gateway.config.settings.section import Section


class HostSettings(Section, frozen=True):
    """Another machine that models' ranks may run on; the table's name is the host's.
    `bulkhead agent` runs there, and says at its first start what belongs here.
    """

    url: Annotated[
        Text,
        text(
            "Where its agent serves.",
            "an address such as https://studio2.local:8643",
            example="https://studio2.local:8643",
        ),
    ]
    key_file: Annotated[
        Text, text("A copy of the agent's key, with mode 0600.", "a file", example="~/studio2.key")
    ]
    fingerprint: Annotated[
        Text,
        text(
            "The SHA-256 fingerprint of the agent's certificate, which is trusted by it alone.",
            "SHA256: and 43 characters, or 64 hexadecimal digits",
            example=f"SHA256:{'A' * 43}",
        ),
    ]
