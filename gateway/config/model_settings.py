"""The configuration's tables with names: models, groups of models, other hosts."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from msgspec import Meta, Struct, field

from gateway.config.key import (
    Budget,
    Count,
    Section,
    Size,
    Text,
    arguments,
    byte_size,
    choice,
    count,
    memory_budget,
    parameters,
    rank_places,
    switch,
    text,
    texts,
    time,
    variables,
    whole,
)
from gateway.config.model_folders import expand_home
from gateway.system.notation import parse_size
from protocol.life import RankBackend, RankSplit

# The name of the gateway's own machine among the hosts.
LOCAL: Final = "local"
# The fields in which a chat's answer has its reasoning: both names, or one.
ReasoningFields: TypeAlias = Literal["both", "reasoning", "reasoning_content"]
_Word: TypeAlias = Annotated[str, Meta(min_length=1)]


class RankPlace(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A host's name, and the addresses at which other ranks reach the rank on this host. Without
    addresses, the host's only address is used, or the address that leads to the other hosts.
    """

    host: _Word
    interfaces: tuple[_Word, ...] = ()

    def __post_init__(self) -> None:
        if not all(word.isprintable() for word in (self.host, *self.interfaces)):
            raise ValueError("names and addresses have printable characters alone")


class SamplingSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of sampling, in OpenAI's, vLLM's and mlx_lm.server's words. None: not set."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0, le=10)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None

    @property
    def given(self) -> dict[str, float]:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.given.items())


class ModelSettings(Section, frozen=True):
    """A model. The table's name is the model's id."""

    path: Annotated[
        Text,
        text(
            "The model's folder, a repository in the Hugging Face cache, or demo. A model with a "
            "command has none.",
            "a model's folder, or a repository in the Hugging Face cache",
            example="demo",
        ),
    ]
    aliases: Annotated[tuple[Text, ...], texts("Other names that requests may use.", "names")] = ()
    pinned: Annotated[
        bool, switch("Never unloaded for another model, and started again after a death or a kill.")
    ] = False
    preload: Annotated[bool, switch("Loaded when the gateway starts.")] = False
    on_request: Annotated[
        bool, switch("Requests load the model. false: only an operator does.")
    ] = True
    ttl_s: Annotated[
        float,
        time(
            "The time without a request after which the model is unloaded. 0: never.", zero="never"
        ),
    ] = 0.0
    priority: Annotated[
        int, whole("Models with a higher priority get memory first.", -1000, 1000)
    ] = 0
    max_concurrency: Annotated[
        Count | None,
        count(
            "Sequences in the batch. Further sequences wait.",
            example=32,
            unset="as many as make the batch faster",
        ),
    ] = None
    context_tokens: Annotated[
        int, whole("The longest prompt + answer. The model's own limit may be lower.", 1)
    ] = 32768
    kv_bits: Annotated[
        Literal[4, 8] | None,
        choice(
            "Bits of a number in the caches of sequences: fewer take less memory, and may change "
            "the text.",
            4,
            8,
            example=8,
            unset="as the model computes",
        ),
    ] = None
    adapter: Annotated[
        Text | None,
        text(
            "Folder of a LoRA adapter, as mlx-lm writes it.",
            "an adapter's folder",
            example="~/adapters/legal",
            unset="none",
        ),
    ] = None
    draft_model: Annotated[
        Text | None,
        text(
            "A small model with the same tokens, EAGLE-3, or a split head, which guesses.",
            "a model's folder, or a repository in the Hugging Face cache",
            example="demo",
            unset="none",
        ),
    ] = None
    draft_tokens: Annotated[
        int,
        whole("A draft model, or the model's own head, guesses so many tokens at a time.", 1, 32),
    ] = 3
    guesses: Annotated[
        bool,
        switch("Compute several tokens in a step where that is faster. The text is the same."),
    ] = True
    pictures: Annotated[
        bool, switch("The model looks at pictures. That needs mlx-vlm (the extra vision).")
    ] = False
    local: Annotated[
        int,
        whole(
            "The number of processes of this machine that compute the model together, each a part "
            "of it: for a model that is larger than one card.",
            1,
            64,
        ),
    ] = 1
    ranks: Annotated[
        tuple[RankPlace, ...],
        rank_places(
            "The machines that compute the model together, each with its part; rank 0 is the "
            "first, and runs here. The model's files are at the same path on all of them.",
            most=64,
        ),
    ] = ()
    hostfile: Annotated[
        Text | None,
        text(
            "A host file of mlx.launch (JSON), in place of ranks. Its first machine is this one.",
            "a file",
            example="~/hosts.json",
            unset="none",
        ),
    ] = None
    backend: Annotated[
        RankBackend | None,
        choice(
            "How the model's processes reach each other: ring over TCP, jaccl by RDMA over "
            "Thunderbolt, nccl between NVIDIA's cards.",
            *get_args(RankBackend),
            example="ring",
            unset="nccl with CUDA, ring otherwise",
        ),
    ] = None
    split: Annotated[
        RankSplit,
        choice(
            "tensor: each process has a part of every layer. pipeline: each process has some of "
            "the layers. mlx-lm must be able to split the model in this way.",
            *get_args(RankSplit),
        ),
    ] = "tensor"
    system: Annotated[
        Text | None,
        text(
            "The system prompt of conversations in which the client sends none.",
            "a text",
            example="Answer in one sentence.",
            unset="none",
        ),
    ] = None
    defaults: Annotated[
        SamplingSettings,
        parameters(
            "Parameters of requests that leave them out; a request's own override them.",
            SamplingSettings,
        ),
    ] = field(default_factory=SamplingSettings)
    template_arguments: Annotated[
        dict[str, Any],
        arguments(
            "Arguments of the chat template beside the messages; a request's own override them."
        ),
    ] = field(default_factory=dict)
    reasoning_fields: Annotated[
        ReasoningFields,
        choice(
            "The fields in which a chat's answer has its reasoning; a client that shows both shows "
            "it twice.",
            *get_args(ReasoningFields),
        ),
    ] = "both"
    python: Annotated[
        Text | None,
        text(
            "Interpreter of another environment, with mlx-lm, msgspec and pyzmq.",
            "an interpreter",
            example="~/other/.venv/bin/python",
            unset="the gateway's own",
        ),
    ] = None

    command: Annotated[
        tuple[Text, ...],
        texts(
            "A program that serves the model by HTTP on this machine, and its arguments, in place "
            "of a path. In them {port} is the port to listen at, or {socket} a Unix socket.",
            'texts, as ["llama-server", "--port", "{port}"]',
            example=("whisper-server", "--port", "{port}"),
        ),
    ] = ()
    environment: Annotated[
        dict[str, Text],
        variables("Variables for the command. It gets none of the gateway's keys and secrets."),
    ] = field(default_factory=dict)
    folder: Annotated[
        Text | None,
        text(
            "The folder that the command works in.",
            "a folder",
            example="~/servers",
            unset="the home folder",
        ),
    ] = None
    health: Annotated[
        Text | None,
        text(
            "The path at which the command's server answers with 200 once it is ready. Later any "
            "answer at this path shows that the server lives.",
            "a path, as /health",
            example="/health",
            unset="/, where any answer will do",
        ),
    ] = None
    name: Annotated[
        Text | None,
        text(
            "The model's name at the command's server. Requests to that server have this name.",
            "a name",
            example="default_model",
            unset="the model's id",
        ),
    ] = None
    paths: Annotated[
        tuple[Text, ...],
        texts(
            "Other paths of the command's server, which can be reached below /servers/ID, with all "
            "paths below them. The paths of OpenAI's API need no entry.",
            "paths, as /system_stats",
        ),
    ] = ()
    fields: Annotated[
        tuple[Text, ...],
        texts(
            "Further fields of requests, which the command's server gets from every caller. "
            "Operators may send any field.",
            "names of fields, as voice_clone",
        ),
    ] = ()
    silence_s: Annotated[
        float,
        time(
            "The longest silence of the command's server, before or within an answer.",
            1.0,
        ),
    ] = 600.0
    memory: Annotated[
        Size | None,
        byte_size(
            "The memory to reserve before the command starts. Without this key, the memory that an "
            "earlier run has held, or the size of the files if that is more.",
            example="8GB",
            unset="as measured before",
        ),
    ] = None
    files: Annotated[
        tuple[Text, ...],
        texts(
            "Files and folders that the command loads. At least their size is reserved until a run "
            "has held more.",
            "files and folders",
        ),
    ] = ()

    @property
    def memory_bytes(self) -> int | None:
        """The memory that the operator has set; None: the operator has set none."""
        return None if self.memory is None else parse_size(self.memory)

    @property
    def places(self) -> tuple[RankPlace, ...]:
        """The place of each rank of the model, rank 0 first."""
        return self.ranks or (RankPlace(LOCAL),) * self.local

    @property
    def ranks_here(self) -> int:
        return sum(place.host == LOCAL for place in self.places)

    @property
    def interpreter(self) -> str | None:
        """`python`, with the home folder in place of `~`."""
        return None if self.python is None else str(expand_home(self.python))


# The keys that only models have that workers compute, and those that only commands have.
COMPUTED_KEYS: Final = (
    *("path", "context_tokens", "kv_bits", "adapter", "draft_model", "draft_tokens", "guesses"),
    *("pictures", "local", "ranks", "hostfile", "backend", "split", "system", "defaults"),
    *("template_arguments", "reasoning_fields", "python"),
)
COMMAND_KEYS: Final = (
    *("environment", "folder", "health", "name", "paths", "fields", "silence_s", "memory"),
    "files",
)


class GroupSettings(Section, frozen=True):
    """Models that belong together; the table's name is the group's."""

    models: Annotated[
        tuple[Text, ...],
        texts(
            "The members of the group, at least two. Each has a table of its own.",
            "ids of models",
            example=("coder", "embedder"),
        ),
    ]
    together: Annotated[
        bool, switch("A load of one member loads all members, or none if there is no room.")
    ] = False
    swap: Annotated[bool, switch("Only one member is loaded at a time.")] = False
    reserve: Annotated[
        bool,
        switch(
            "Loads of other models leave room for all members (with swap: for the largest). While "
            "no member uses the room, it is lent, and called back later."
        ),
    ] = False


class UpstreamSettings(Section, frozen=True):
    """Another server of OpenAI's API, such as Bulkhead on another machine; the table's name is the
    upstream's. Its models are served here as NAME/MODEL, without memory of this machine.
    """

    url: Annotated[
        Text,
        text(
            "The address of the upstream's API.",
            "an address such as https://box.local:8642/v1",
            example="https://box.local:8642/v1",
        ),
    ]
    key_file: Annotated[
        Text | None,
        text(
            "A file, with mode 0600, with the API key that this gateway shows to the upstream.",
            "a file",
            example="~/box.key",
            unset="no key is shown",
        ),
    ] = None
    certificate: Annotated[
        Text | None,
        text(
            "The certificate in PEM of the server, or of its signer. No other one is trusted.",
            "a file",
            example="~/box.crt",
            unset="the authorities that this machine trusts",
        ),
    ] = None
    fields: Annotated[
        tuple[Text, ...],
        texts(
            "Further fields of requests, which the upstream gets from every caller. Operators may "
            "send any field.",
            "names of fields, as voice_clone",
        ),
    ] = ()
    silence_s: Annotated[
        float, time("The longest silence of the upstream, before or within an answer.", 1.0)
    ] = 600.0
    max_concurrency: Annotated[
        int, whole("Requests from here that run there at once; more are refused.", 1, 10_000)
    ] = 256


class HostSettings(Section, frozen=True):
    """Another machine that models' ranks may run on; the table's name is the host's. The gateway
    starts the ranks by ssh, without a password.
    """

    ssh: Annotated[
        Text,
        text(
            "The host's name for ssh.",
            "a name such as studio2 or me@studio2.local",
            example="studio2",
        ),
    ]
    command: Annotated[
        Text,
        text(
            "The command that starts bulkhead on the host. The host's shell reads it.",
            "a command such as ~/bulkhead/.venv/bin/bulkhead",
            example="bulkhead",
        ),
    ] = "bulkhead"
    budget: Annotated[
        Budget,
        memory_budget("The memory that all ranks of this gateway may hold there."),
    ] = "auto"
