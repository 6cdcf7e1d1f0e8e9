"""One model."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import field

from gateway.config.kinds import Arguments, Choice, Switch, Text, Texts, Time, Whole
from gateway.config.models import expand_home
from gateway.config.rank_places import LOCAL, RankPlace, RankPlaces
from gateway.config.settings.section import Key, Section
from protocol.ranks import RankBackend, RankSplit


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
    local: Annotated[
        int,
        Key(
            Whole(1, 64),
            "So many processes of this machine compute it together, each with its part: on "
            "several cards, a model that is larger than one.",
        ),
    ] = 1
    ranks: Annotated[
        tuple[RankPlace, ...],
        Key(
            RankPlaces(),
            "The machines that compute it together, each with its part; rank 0 is the first, and "
            "runs here. The model's files are at the same path on all of them.",
        ),
    ] = ()
    backend: Annotated[
        RankBackend | None,
        Key(
            Choice(("ring", "jaccl", "nccl")),
            "How those processes reach each other: ring over TCP, jaccl by RDMA over Thunderbolt, "
            "nccl between NVIDIA's cards.",
            example="ring",
            unset="nccl with CUDA, ring otherwise",
        ),
    ] = None
    split: Annotated[
        RankSplit,
        Key(
            Choice(("tensor", "pipeline")),
            "Each of them has its part of every layer, or some of the layers, as mlx-lm can split "
            "the model.",
        ),
    ] = "tensor"
    template_arguments: Annotated[
        dict[str, Any],
        Key(
            Arguments(),
            "What the chat template is told beside the messages; a request's own go before.",
        ),
    ] = field(default_factory=dict)
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
    def places(self) -> tuple[RankPlace, ...]:
        """Of all its ranks."""
        return self.ranks or (RankPlace(LOCAL),) * self.local

    @property
    def ranks_here(self) -> int:
        return sum(each.host == LOCAL for each in self.places)

    @property
    def interpreter(self) -> str | None:
        """`python`, with the home that a `~` stands for."""
        return None if self.python is None else str(expand_home(self.python))
