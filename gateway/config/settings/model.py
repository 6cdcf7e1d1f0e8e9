"""One model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from msgspec import field

from gateway.config.kinds import (
    Text,
    arguments,
    choice,
    rank_places,
    switch,
    text,
    texts,
    time,
    whole,
)
from gateway.config.models import expand_home
from gateway.config.rank_places import LOCAL, RankPlace
from gateway.config.settings.section import Section
from protocol.ranks import RankBackend, RankSplit


class ModelSettings(Section, frozen=True):
    """A model; the table's name is its id."""

    path: Annotated[
        Text,
        text(
            "The model's folder, a repository in the Hugging Face cache, or demo.",
            "a model's folder, or a repository in the Hugging Face cache",
            example="demo",
        ),
    ]
    aliases: Annotated[tuple[Text, ...], texts("Other names that requests may use.", "names")] = ()
    pinned: Annotated[
        bool, switch("Never unloaded for another; after a death or a kill it starts again.")
    ] = False
    preload: Annotated[bool, switch("Loaded when the gateway starts.")] = False
    on_request: Annotated[bool, switch("Requests load it; false: only an operator does.")] = True
    ttl_s: Annotated[
        float, time("Unloaded after so long without a request; 0: never.", zero="never")
    ] = 0.0
    priority: Annotated[int, whole("Who has more gets memory first.", -1000, 1000)] = 0
    max_concurrency: Annotated[int, whole("Sequences in the batch; more wait.", 1)] = 32
    context_tokens: Annotated[
        int, whole("The longest prompt + answer; the model's own limit may be lower.", 1)
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
            "A small model with the same tokens, which guesses what comes next.",
            "a model's folder, or a repository in the Hugging Face cache",
            example="demo",
            unset="none",
        ),
    ] = None
    draft_tokens: Annotated[
        int, whole("So many tokens are guessed at a time, with a draft model.", 1, 32)
    ] = 3
    pictures: Annotated[
        bool,
        switch(
            "It looks at pictures, by mlx-vlm (the extra vision), and answers one request at a "
            "time."
        ),
    ] = False
    local: Annotated[
        int,
        whole(
            "So many processes of this machine compute it together, each with its part: on "
            "several cards, a model that is larger than one.",
            1,
            64,
        ),
    ] = 1
    ranks: Annotated[
        tuple[RankPlace, ...],
        rank_places(
            "The machines that compute it together, each with its part; rank 0 is the first, and "
            "runs here. The model's files are at the same path on all of them.",
            most=64,
        ),
    ] = ()
    backend: Annotated[
        RankBackend | None,
        choice(
            "How those processes reach each other: ring over TCP, jaccl by RDMA over Thunderbolt, "
            "nccl between NVIDIA's cards.",
            *get_args(RankBackend),
            example="ring",
            unset="nccl with CUDA, ring otherwise",
        ),
    ] = None
    split: Annotated[
        RankSplit,
        choice(
            "Each of them has its part of every layer, or some of the layers, as mlx-lm can split "
            "the model.",
            *get_args(RankSplit),
        ),
    ] = "tensor"
    template_arguments: Annotated[
        dict[str, Any],
        arguments("What the chat template is told beside the messages; a request's own go before."),
    ] = field(default_factory=dict)
    python: Annotated[
        Text | None,
        text(
            "Interpreter of another environment, with mlx-lm, msgspec and pyzmq.",
            "an interpreter",
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
