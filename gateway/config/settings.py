"""The tables of the configuration file, with the types, bounds, defaults and meanings of their
keys.

Validation, `bulkhead config example`, the JSON schema and docs/configuration.md are made from these
definitions. The tables of models, groups and hosts are in `model_settings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct, field

from gateway.config.key import (
    Budget,
    Section,
    Size,
    Text,
    byte_size,
    memory_budget,
    switch,
    text,
    texts,
    time,
    whole,
)
from gateway.config.model_folders import expand_home
from gateway.config.model_settings import (
    GroupSettings,
    HostSettings,
    ModelSettings,
    UpstreamSettings,
)
from gateway.system.notation import parse_size


class Flags(Struct, frozen=True, kw_only=True):
    """The flags of `bulkhead serve`; None: the flag isn't given."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    state_dir: Path | None = None
    models: tuple[str, ...] = ()
    memory_budget: str | None = None
    spare: int | None = None


class GatewaySettings(Section, frozen=True):
    """The gateway itself."""

    host: Annotated[
        Text,
        text(
            "Address to listen on; others than loopback need API keys. 0.0.0.0 or :: stands for "
            "all addresses.",
            "an address of this machine",
            restart=True,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, whole("Port to listen on; 0 chooses a free one.", 0, 65535, restart=True)
    ] = 8642
    state_dir: Annotated[
        Text | None,
        text(
            "Folder for lock, sockets, logs and prompts.",
            "a folder",
            example="~/bulkhead",
            unset="the platform's folder",
            restart=True,
        ),
    ] = None
    drain_s: Annotated[
        float, time("The time that running answers get before an unload or the end.")
    ] = 30.0
    keep_awake: Annotated[
        bool, switch("A Mac doesn't go to sleep by itself while requests run or models load.")
    ] = True
    allow: Annotated[
        tuple[Text, ...],
        texts(
            "If given, only models in these folders and of these repositories, such as "
            '"mlx-community/*", may be served.',
            "folders and repositories",
        ),
    ] = ()

    allowed_hosts: Annotated[
        tuple[Text, ...],
        texts(
            "Names, beside this machine's own, that requests may have as their Host. They need "
            "API keys.",
            "names",
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[Text, ...],
        texts(
            "Web pages that may use the gateway from a browser. Other pages may not.",
            'origins such as "https://chat.example"',
        ),
    ] = ()
    tls_certificate: Annotated[
        Text | None,
        text(
            "Certificate in PEM, followed by its chain. A reload reads a renewed certificate from "
            "the same file.",
            "a file",
            example="~/tls/mac.crt",
            unset="plain HTTP",
            restart=True,
        ),
    ] = None
    tls_key: Annotated[
        Text | None,
        text(
            "The key of the certificate, in PEM and without a password. A reload reads a renewed "
            "key from the same file.",
            "a file",
            example="~/tls/mac.key",
            unset="plain HTTP",
            restart=True,
        ),
    ] = None
    image_folders: Annotated[
        tuple[Text, ...],
        texts(
            "Requests may name pictures in these folders, by path or file: address. Links that "
            "lead out of the folders are not followed.",
            "folders",
        ),
    ] = ()
    remote_images: Annotated[
        bool, switch("Pictures are fetched from http and https addresses of the internet.")
    ] = False
    max_connections: Annotated[
        int, whole("Connections at a time; the limit of open files may allow fewer.", 8)
    ] = 2048
    max_connections_per_address: Annotated[
        int,
        whole(
            "Connections at a time from one address, or from one /64 network of IPv6. Connections "
            "from this machine have no bound.",
            1,
        ),
    ] = 256

    @property
    def tls(self) -> bool:
        return self.tls_certificate is not None


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
            "Copy models from this folder instead. In it models stand as OWNER/NAME, or as in a "
            "Hugging Face cache.",
            "a folder",
            example="/Volumes/models",
            unset="the hub is asked",
        ),
    ] = None
    check_pulls: Annotated[
        bool, switch("Check each model that was pulled, as `bulkhead check` does.")
    ] = False

    @property
    def folder_path(self) -> str | None:
        """`folder`, with the home folder in place of `~`."""
        return None if self.folder is None else str(expand_home(self.folder))


# The value in `discover` that means the Hugging Face cache.
HUGGING_FACE: Final = "huggingface"


class DiscoverySettings(Section, frozen=True):
    """Models that have no table of their own."""

    # In the file these keys are in the table [models], beside the tables of models.

    discover: Annotated[
        tuple[Text, ...],
        texts(
            "The models in these folders are served without a table of their own, and so are those "
            "of the Hugging Face cache if it is named.",
            f'folders and "{HUGGING_FACE}"',
        ),
    ] = (HUGGING_FACE,)


class QueueSettings(Section, frozen=True):
    """Requests that wait."""

    depth: Annotated[
        int, whole("Requests that may wait for one model; more are refused with 429.", 1)
    ] = 512
    deadline_s: Annotated[
        float, time("Longest wait for a model; X-Deadline-S sets another for one request.")
    ] = 300.0
    max_wait_s: Annotated[
        float, time("A load that has waited so long for memory may displace a busy model.")
    ] = 60.0


class PromptCacheSettings(Section, frozen=True):
    """Computed prompts, cached for later prompts with the same beginning."""

    # A size stays as the text or number in the file. By default, eight hours a day at the bound
    # write 600 TB in five years, for which makers of 1 TB disks give a warranty.
    disk: Annotated[
        Size,
        byte_size(
            "The most bytes of cached prompts on the disk, in the state folder; 0: cached prompts "
            "are only in memory.",
            restart=True,
        ),
    ] = "20GB"
    disk_writes_per_hour: Annotated[
        Size,
        byte_size(
            "The most bytes that are written to the disk in an hour, as writes wear the disk.",
            restart=True,
        ),
    ] = "40GB"

    shared: Annotated[
        bool, switch("All API keys share one cache, and can find out what others have asked.")
    ] = False
    explain: Annotated[
        bool,
        switch(
            "The gateway remembers parts of the last prompts in its memory, for `bulkhead why`."
        ),
    ] = True

    @property
    def disk_bytes(self) -> int:
        return parse_size(self.disk)

    @property
    def disk_writes_per_hour_bytes(self) -> int:
        return parse_size(self.disk_writes_per_hour)


class MailboxSettings(Section, frozen=True):
    """Answers that wait for their clients, and responses that are stored."""

    keep_s: Annotated[float, time("How long an answer stays in the mailbox after its end.")] = (
        3600.0
    )
    size: Annotated[
        Size, byte_size("The size of the mailbox on the disk; the oldest answers make room.")
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


class MemorySettings(Section, frozen=True):
    """The memory of all workers together."""

    # A size stays as the text or number in the file. A percentage is a share of the memory that
    # models are in: the memory of the machine, or of a card.
    budget: Annotated[
        Budget,
        memory_budget(
            "The memory of all workers. auto: the most that MLX may use, minus the headroom."
        ),
    ] = "auto"
    headroom: Annotated[
        Size, byte_size("The memory that an automatic budget leaves to other programs.")
    ] = "2GB"
    ordinary_tokens: Annotated[
        int,
        whole(
            "A model is loaded once there is room for one sequence of so many tokens. Memory for "
            "longer sequences, and for more sequences, is lent.",
            1,
        ),
    ] = 4096
    wire_weights: Annotated[
        bool,
        switch(
            "Ask macOS to wire weights, so that they stay in memory. macOS may unwire them all the "
            "same, and wired memory has taken part in panics of the machine."
        ),
    ] = False


class WorkersSettings(Section, frozen=True):
    """The processes that hold the models."""

    spare: Annotated[int, whole("Workers that have done their imports and wait for a model.")] = 1
    # Within a time of 0 no model could be loaded.
    load_timeout_s: Annotated[
        float, time("Longest time from a worker's start until the model answers.", least_s=0.1)
    ] = 600.0
    restart_limit: Annotated[
        int, whole("So many deaths within the window are each followed by a start at once.")
    ] = 3
    restart_window_s: Annotated[float, time("The window in which deaths are counted.")] = 60.0
    backoff_limit: Annotated[
        int, whole("Then so many starts come after a pause each, and then the breaker opens.")
    ] = 5
    backoff_first_s: Annotated[
        float, time("The first pause. Each pause is twice as long as the one before.")
    ] = 1.0
    backoff_longest_s: Annotated[float, time("The longest pause.")] = 60.0
    breaker_retry_s: Annotated[float, time("Time until an open breaker allows one start.")] = 300.0
    heartbeat_timeout_s: Annotated[
        float, time("A worker that is silent for so long, and 2 s at least, is hung.", least_s=0.1)
    ] = 10.0
    stall_timeout_s: Annotated[
        float, time("A worker that has work and makes no step for so long is hung.", least_s=0.1)
    ] = 60.0
    # No chunk of a prompt can take less time than `least_s`.
    prefill_stall_s: Annotated[
        float,
        time(
            "The longest time that a chunk of a prompt may delay running streams, beside one step. "
            "A worker gets a new value at its load.",
            least_s=0.01,
        ),
    ] = 0.1


_Name: TypeAlias = Annotated[str, Meta(min_length=1)]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration. `models` are by id, other tables by name. `discovery` has the keys
    of the table `models` that aren't tables of models.
    """

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    workers: WorkersSettings = field(default_factory=WorkersSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    prompt_cache: PromptCacheSettings = field(default_factory=PromptCacheSettings)
    mailbox: MailboxSettings = field(default_factory=MailboxSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    hosts: Annotated[
        dict[_Name, HostSettings], Meta(description="Other machines by their names.")
    ] = field(default_factory=dict)
    upstreams: Annotated[
        dict[_Name, UpstreamSettings], Meta(description="Other servers by their names.")
    ] = field(default_factory=dict)
    models: Annotated[dict[_Name, ModelSettings], Meta(description="The models by their ids.")] = (
        field(default_factory=dict)
    )
    groups: Annotated[
        dict[_Name, GroupSettings], Meta(description="Groups of models by their names.")
    ] = field(default_factory=dict)
