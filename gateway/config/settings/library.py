"""Where models come from: a hub, and the disks."""

from __future__ import annotations

from typing import Annotated, Final

from gateway.config.kinds import Text, text, texts
from gateway.config.models import expand_home
from gateway.config.settings.section import Section


class HubSettings(Section, frozen=True):
    """Where `bulkhead pull` gets models from."""

    endpoint: Annotated[
        Text | None,
        text(
            "The hub, or a mirror that speaks as it does. The token is HF_TOKEN, or that of "
            "`hf auth login`.",
            "an address such as https://huggingface.co",
            example="https://huggingface.co",
            unset="HF_ENDPOINT, or huggingface.co",
        ),
    ] = None
    folder: Annotated[
        Text | None,
        text(
            "Copy models from this folder instead, which has them as OWNER/NAME or as a Hugging "
            "Face cache.",
            "a folder",
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
    """What holds for models that have no table of their own."""

    # These keys stand beside the models' tables in the table that holds these.

    discover: Annotated[
        tuple[Text, ...],
        texts(
            "Models in these folders, and in the Hugging Face cache if it is named, are served "
            "without a table of their own.",
            f'folders and "{HUGGING_FACE}"',
        ),
    ] = (HUGGING_FACE,)
