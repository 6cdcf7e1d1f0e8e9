"""What waits, and what is kept: requests, prompts, answers."""

from __future__ import annotations

from typing import Annotated

from gateway.config.kinds import Size, byte_size, switch, time, whole
from gateway.config.settings.section import Section
from gateway.system.notation import parse_size


class QueueSettings(Section, frozen=True):
    """Requests that wait."""

    depth: Annotated[
        int, whole("Requests that may wait for one model; more are refused with 429.", 1)
    ] = 512
    deadline_s: Annotated[
        float, time("Longest wait for a model; X-Deadline-S sets another for one request.")
    ] = 300.0
    max_wait_s: Annotated[float, time("Who waits longer for memory may displace a busy model.")] = (
        60.0
    )


class PromptCacheSettings(Section, frozen=True):
    """Prompts that were computed once, kept for those that begin alike."""

    # Sizes are as they were written. By default, eight hours a day at the bound write 600 TB in
    # five years, which is what makers of disks of 1 TB warrant.
    disk: Annotated[
        Size,
        byte_size(
            "What they may take of the disk, in the state folder; 0 keeps them in memory alone.",
            restart=True,
        ),
    ] = "20GB"
    disk_writes_per_hour: Annotated[
        Size,
        byte_size("What is written to the disk in an hour at most, as it wears.", restart=True),
    ] = "40GB"

    shared: Annotated[
        bool, switch("All API keys find each other's prompts, and can tell what others have asked.")
    ] = False

    @property
    def disk_bytes(self) -> int:
        return parse_size(self.disk)

    @property
    def disk_writes_per_hour_bytes(self) -> int:
        return parse_size(self.disk_writes_per_hour)


class MailboxSettings(Section, frozen=True):
    """Answers that wait for their clients, and responses that are stored."""

    keep_s: Annotated[float, time("How long an answer waits in the mailbox once it is there.")] = (
        3600.0
    )
    size: Annotated[
        Size, byte_size("What the mailbox may hold on the disk; the oldest answers make room.")
    ] = "1GB"
    depth: Annotated[
        int, whole("Background responses that may wait; more are refused with 429.", 1)
    ] = 256
    deadline_s: Annotated[
        float,
        time(
            "Longest wait of a background response, or a chat with X-Mailbox; X-Deadline-S sets "
            "another for one request."
        ),
    ] = 86_400.0
    concurrency: Annotated[
        int, whole("Background responses that one model makes at a time.", 1)
    ] = 4

    @property
    def size_bytes(self) -> int:
        return parse_size(self.size)
