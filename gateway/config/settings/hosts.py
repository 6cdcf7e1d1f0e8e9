"""Other machines."""

from __future__ import annotations

from typing import Annotated, ClassVar

from gateway.config.kinds import Text
from gateway.config.settings.section import Key, Section


class HostSettings(Section, frozen=True):
    about: ClassVar[str] = (
        "Another machine that models' ranks may run on; the table's name is the host's. "
        "`bulkhead agent` runs there, and says at its first start what belongs here."
    )

    url: Annotated[
        str,
        Key(
            Text("an address such as https://studio2.local:8643"),
            "Where its agent serves.",
            example="https://studio2.local:8643",
        ),
    ]
    key_file: Annotated[
        str,
        Key(
            Text("a file"),
            "A copy of the agent's key, with mode 0600.",
            example="~/studio2.key",
        ),
    ]
    fingerprint: Annotated[
        str,
        Key(
            Text("SHA256: and 43 characters, or 64 hexadecimal digits"),
            "The SHA-256 fingerprint of the agent's certificate, which is trusted by it alone.",
            example=f"SHA256:{'A' * 43}",
        ),
    ]
