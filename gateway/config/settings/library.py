"""Where models come from: a hub, and the disks."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from gateway.config.kinds import Text, Texts
from gateway.config.models import expand_home
from gateway.config.settings.section import Key, Section


class HubSettings(Section, frozen=True):
    about: ClassVar[str] = "Where `bulkhead pull` gets models from."

    endpoint: Annotated[
        str | None,
        Key(
            Text("an address such as https://huggingface.co"),
            "The hub, or a mirror that speaks as it does. The token is HF_TOKEN, or that of "
            "`hf auth login`.",
            example="https://huggingface.co",
            unset="HF_ENDPOINT, or huggingface.co",
        ),
    ] = None
    folder: Annotated[
        str | None,
        Key(
            Text("a folder"),
            "Copy models from this folder instead, which has them as OWNER/NAME or as a Hugging "
            "Face cache.",
            example="/Volumes/models",
            unset="the hub is asked",
        ),
    ] = None

    @property
    def at(self) -> str | None:
        """`folder`, with the home that a `~` stands for."""
        return None if self.folder is None else str(expand_home(self.folder))


# What `discover` has for the Hugging Face cache, wherever that is.
HUGGING_FACE: Final = "huggingface"


class DiscoverySettings(Section, frozen=True):
    """Keys that stand beside the models' tables in the table that holds these."""

    about: ClassVar[str] = "What holds for models that have no table of their own."

    discover: Annotated[
        tuple[str, ...],
        Key(
            Texts(f'folders and "{HUGGING_FACE}"'),
            "Models in these folders, and in the Hugging Face cache if it is named, are served "
            "without a table of their own.",
        ),
    ] = (HUGGING_FACE,)
