"""Every configuration key: its kind, default and meaning.

Validation, `bulkhead config example`, the JSON schema and docs/configuration.md are all made from
these definitions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from msgspec import Struct, field

from gateway.config.kinds import Arguments, Choice, Kind, Size, Switch, Text, Texts, Time, Whole
from gateway.config.mistakes import Mistake
from gateway.config.models import expand_home
from gateway.config.sizes import parse_size


class Key(Struct, frozen=True):
    """What is said of a key beside its default.

    `example` is an answer where the default says nothing, or none is; `unset` says what None means.
    `restart`: the running gateway can't take a new value.
    """

    kind: Kind
    about: str
    example: str | int | None = None
    unset: str | None = None
    restart: bool = False


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the file's tables; `about` says what one is for."""

    about: ClassVar[str]


class GatewaySettings(Section, frozen=True):
    about: ClassVar[str] = "The gateway itself."

    host: Annotated[
        str,
        Key(
            Text("an address of this machine"),
            "Address to listen on; others than loopback need API keys. 0.0.0.0 or :: is all.",
            restart=True,
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Key(Whole(0, 65535), "Port to listen on; 0 takes a free one.", restart=True)
    ] = 8642
    state_dir: Annotated[
        str | None,
        Key(
            Text("a folder"),
            "Folder for lock, sockets, logs and prompts.",
            example="~/bulkhead",
            unset="the platform's folder",
            restart=True,
        ),
    ] = None
    drain_s: Annotated[
        float, Key(Time(), "What running answers get to finish, before an unload or the end.")
    ] = 30.0
    allow: Annotated[
        tuple[str, ...],
        Key(
            Texts("folders and repositories"),
            'If given, only models in these folders, or repositories such as "mlx-community/*".',
        ),
    ] = ()

    allowed_hosts: Annotated[
        tuple[str, ...],
        Key(
            Texts("names"),
            "Names that requests may have as their Host beside this machine's own.",
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Key(
            Texts('origins such as "https://chat.example"'),
            "Web pages that may use everything here from a browser; no other may.",
        ),
    ] = ()
    tls_certificate: Annotated[
        str | None,
        Key(
            Text("a file"),
            "Certificate in PEM, with those that vouch for it behind it; a reload takes a renewed "
            "one of the same file.",
            example="~/tls/mac.crt",
            unset="plain HTTP",
            restart=True,
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        Key(
            Text("a file"),
            "The key of the certificate, in PEM and without a password; a reload takes a renewed "
            "one of the same file.",
            example="~/tls/mac.key",
            unset="plain HTTP",
            restart=True,
        ),
    ] = None
    image_folders: Annotated[
        tuple[str, ...],
        Key(
            Texts("folders"),
            "Requests may name pictures in these folders, by path or file: address; links that "
            "lead out of them are not followed.",
        ),
    ] = ()
    remote_images: Annotated[
        bool,
        Key(
            Switch(),
            "Pictures are fetched from http and https addresses, if these are of the internet.",
        ),
    ] = False
    max_connections: Annotated[
        int,
        Key(
            Whole(8),
            "Connections at a time; the limit of open files may allow fewer.",
        ),
    ] = 2048
    max_connections_per_address: Annotated[
        int,
        Key(
            Whole(1),
            "Of these from one address, or one /64 network of IPv6; this machine has no bound.",
        ),
    ] = 256

    @property
    def tls(self) -> bool:
        return self.tls_certificate is not None


class MemorySettings(Section, frozen=True):
    """Sizes are as they were written; a percentage is of the memory that models are in:
    the machine's, or a card's.
    """

    about: ClassVar[str] = "What the workers may hold together."

    budget: Annotated[
        int | str,
        Key(
            Size(automatic=True),
            "What all workers may hold; auto is what MLX may use, less the headroom.",
        ),
    ] = "auto"
    headroom: Annotated[
        int | str, Key(Size(), "What an automatic budget leaves to everything else.")
    ] = "2GB"
    ordinary_tokens: Annotated[
        int,
        Key(
            Whole(1),
            "A model is loaded once there is room for one sequence of so many tokens; what longer "
            "and more of them take is lent.",
        ),
    ] = 4096
    wire_weights: Annotated[
        bool,
        Key(
            Switch(),
            "Keep weights from being paged out, on macOS: an idle model answers at once, and the "
            "rest of the machine has less to spare.",
        ),
    ] = True


class WorkersSettings(Section, frozen=True):
    about: ClassVar[str] = "The processes that hold the models."

    spare: Annotated[
        int, Key(Whole(), "Workers that have done their imports and wait for a model.")
    ] = 1
    # At once is no time to load in, or to make a step.
    load_timeout_s: Annotated[
        float,
        Key(Time(least_s=0.1), "Longest time from a worker's start until the model answers."),
    ] = 600.0
    restart_limit: Annotated[
        int, Key(Whole(), "Deaths within the window that are answered by a start at once.")
    ] = 3
    restart_window_s: Annotated[float, Key(Time(), "The window in which deaths are counted.")] = (
        60.0
    )
    backoff_limit: Annotated[
        int, Key(Whole(), "Then so many starts after a pause, and then the breaker opens.")
    ] = 5
    backoff_first_s: Annotated[
        float, Key(Time(), "The first pause; each is twice the one before.")
    ] = 1.0
    backoff_longest_s: Annotated[float, Key(Time(), "The longest pause.")] = 60.0
    breaker_retry_s: Annotated[
        float, Key(Time(), "Time until the open breaker lets one start be tried.")
    ] = 300.0
    heartbeat_timeout_s: Annotated[
        float,
        Key(Time(least_s=0.1), "A worker that is silent for so long, and 2 s at least, is hung."),
    ] = 10.0
    stall_timeout_s: Annotated[
        float,
        Key(Time(least_s=0.1), "A worker that has work and makes no step for so long is hung."),
    ] = 60.0
    # No chunk would be short enough for less.
    prefill_stall_s: Annotated[
        float,
        Key(
            Time(least_s=0.01),
            "The longest that a prompt's chunk holds up running streams beside one step; a worker "
            "takes it at its load.",
        ),
    ] = 0.1


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


class ModelSettings(Section, frozen=True):
    about: ClassVar[str] = "A model; the table's name is its id."

    path: Annotated[
        str,
        Key(
            Text("a model's folder, or a repository in the Hugging Face cache"),
            "The model's folder, a repository in the Hugging Face cache, or demo.",
            example="demo",
        ),
    ]
    aliases: Annotated[
        tuple[str, ...], Key(Texts("names"), "Other names that requests may use.")
    ] = ()
    pinned: Annotated[
        bool,
        Key(Switch(), "Never unloaded for another; after a death or a kill it starts again."),
    ] = False
    preload: Annotated[bool, Key(Switch(), "Loaded when the gateway starts.")] = False
    on_request: Annotated[
        bool, Key(Switch(), "Requests load it; false: only an operator does.")
    ] = True
    ttl_s: Annotated[
        float, Key(Time(zero="never"), "Unloaded after so long without a request; 0: never.")
    ] = 0.0
    priority: Annotated[int, Key(Whole(-1000, 1000), "Who has more gets memory first.")] = 0
    max_concurrency: Annotated[int, Key(Whole(1), "Sequences in the batch; more wait.")] = 32
    context_tokens: Annotated[
        int,
        Key(Whole(1), "The longest prompt + answer; the model's own limit may be lower."),
    ] = 32768
    kv_bits: Annotated[
        int | None,
        Key(
            Choice((4, 8)),
            "Bits of a number in the caches of sequences: fewer take less memory, and may change "
            "the text.",
            example=8,
            unset="as the model computes",
        ),
    ] = None
    adapter: Annotated[
        str | None,
        Key(
            Text("an adapter's folder"),
            "Folder of a LoRA adapter, as mlx-lm writes it.",
            example="~/adapters/legal",
            unset="none",
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        Key(
            Text("a model's folder, or a repository in the Hugging Face cache"),
            "A small model with the same tokens, which guesses what comes next.",
            example="demo",
            unset="none",
        ),
    ] = None
    draft_tokens: Annotated[
        int, Key(Whole(1, 32), "So many tokens are guessed at a time, with a draft model.")
    ] = 3
    pictures: Annotated[
        bool,
        Key(
            Switch(),
            "It looks at pictures, by mlx-vlm (the extra vision), and answers one request at a "
            "time.",
        ),
    ] = False
    template_arguments: Annotated[
        dict[str, Any],
        Key(
            Arguments(),
            "What the chat template is told beside the messages; a request's own go before.",
        ),
    ] = {}
    python: Annotated[
        str | None,
        Key(
            Text("an interpreter"),
            "Interpreter of another environment, with mlx-lm, msgspec and pyzmq.",
            example="~/other/.venv/bin/python",
            unset="the gateway's own",
        ),
    ] = None

    @property
    def interpreter(self) -> str | None:
        """`python`, with the home that a `~` stands for."""
        return None if self.python is None else str(expand_home(self.python))


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration. `models` is by id; `discovery` are the keys in its table that are
    no models.
    """

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    memory: MemorySettings = field(default_factory=MemorySettings)
    workers: WorkersSettings = field(default_factory=WorkersSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    prompt_cache: PromptCacheSettings = field(default_factory=PromptCacheSettings)
    mailbox: MailboxSettings = field(default_factory=MailboxSettings)
    hub: HubSettings = field(default_factory=HubSettings)
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    models: dict[str, ModelSettings] = field(default_factory=dict)


class ConfigError(Exception):
    """Everything that is wrong with the configuration."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = mistakes


class Flags(Struct, frozen=True, kw_only=True):
    """What the command line of `serve` may say; None where it says nothing."""

    config: Path | None = None
    host: str | None = None
    port: int | None = None
    state_dir: Path | None = None
    models: tuple[str, ...] = ()
    memory_budget: str | None = None
    spare: int | None = None
