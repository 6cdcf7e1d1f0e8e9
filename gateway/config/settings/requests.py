"""What waits, and what is kept: requests, prompts, answers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from gateway.config.kinds import Size, Switch, Time, Whole
from gateway.config.settings.section import Key, Section
from gateway.system.sizes import parse_size


class QueueSettings(Section, frozen=True):
    about: ClassVar[str] = "Requests that wait."

    depth: Annotated[
        int, Key(Whole(1), "Requests that may wait for one model; more are refused with 429.")
    ] = 512
    deadline_s: Annotated[
        float, Key(Time(), "Longest wait for a model; X-Deadline-S sets another for one request.")
    ] = 300.0
    max_wait_s: Annotated[
        float, Key(Time(), "Who waits longer for memory may displace a busy model.")
    ] = 60.0


class PromptCacheSettings(Section, frozen=True):
    """Sizes are as they were written. By default, eight hours a day at the bound write 600 TB in
    five years, which is what makers of disks of 1 TB warrant.
    """

    about: ClassVar[str] = "Prompts that were computed once, kept for those that begin alike."

    disk: Annotated[
        int | str,
        Key(
            Size(),
            "What they may take of the disk, in the state folder; 0 keeps them in memory alone.",
            restart=True,
        ),
    ] = "20GB"
    disk_writes_per_hour: Annotated[
        int | str,
        Key(Size(), "What is written to the disk in an hour at most, as it wears.", restart=True),
    ] = "40GB"

    shared: Annotated[
        bool,
        Key(
            Switch(),
            "All API keys find each other's prompts, and can tell what others have asked.",
        ),
    ] = False

    @property
    def disk_bytes(self) -> int:
        return parse_size(self.disk)

    @property
    def disk_writes_per_hour_bytes(self) -> int:
        return parse_size(self.disk_writes_per_hour)


class MailboxSettings(Section, frozen=True):
    """`size` is as it was written."""

    about: ClassVar[str] = "Answers that wait for their clients, and responses that are stored."

    keep_s: Annotated[
        float, Key(Time(), "How long an answer waits in the mailbox once it is there.")
    ] = 3600.0
    size: Annotated[
        int | str,
        Key(Size(), "What the mailbox may hold on the disk; the oldest answers make room."),
    ] = "1GB"
    depth: Annotated[
        int, Key(Whole(1), "Background responses that may wait; more are refused with 429.")
    ] = 256
    deadline_s: Annotated[
        float,
        Key(
            Time(),
            "Longest wait of a background response, or a chat with X-Mailbox; X-Deadline-S sets "
            "another for one request.",
        ),
    ] = 86_400.0
    concurrency: Annotated[
        int, Key(Whole(1), "Background responses that one model makes at a time.")
    ] = 4

    @property
    def size_bytes(self) -> int:
        return parse_size(self.size)
