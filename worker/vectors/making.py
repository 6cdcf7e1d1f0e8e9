"""Makes the parts with which a loaded model serves vectors: abilities, tokenizer and engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from protocol.answers import Embedded, OutputInvalid, RequestFailed, RequestField
from protocol.life import Ability
from protocol.message_base import unpack
from protocol.requests import Embed, TextPrompt
from worker.engines.room import CacheRoom, Context
from worker.load.loading import LoadedModel
from worker.mlx_embeddings import scores
from worker.mlx_lm.text import tokenizer_inside
from worker.system.errors import ModelError, PromptError
from worker.vectors.backbones import Backbone, Decoder, Encoder
from worker.vectors.engine import VectorEngine
from worker.vectors.heads import ClassHead, PoolHead, TokenHead, VectorHead, YesHead
from worker.vectors.jobs import TokenizedText, VectorJob, VectorKind
from worker.vectors.late_texts import LateTexts
from worker.vectors.recipe import Recipe, RecipeError, encoder_pooling, read_recipe

# Vocabularies have runs of spaces as single tokens. The longest known run has 128 spaces.
_MOST_CHARACTERS_PER_TOKEN: Final = 128
# For each role the names that model files give to its prompt. The first name in the files counts.
_ROLES: Final = {
    "query": ("query", "search_query", "retrieval.query", "Retrieval-query", "s2p_query"),
    "document": (
        "document",
        "passage",
        "search_document",
        "retrieval.passage",
        "Retrieval-document",
    ),
}
# The prompt in the model card of Qwen3-Reranker.
_BEFORE: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
_BEHIND: Final = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_TASK: Final = "Given a web search query, retrieve relevant passages that answer the query"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class VectorServing:
    """The parts that serve a model's vectors: `texts` makes jobs, and `engine` computes them."""

    abilities: tuple[Ability, ...]
    texts: VectorTokenizer
    engine: VectorEngine


def make_vectors(
    loaded: LoadedModel,
    source: str,
    room: CacheRoom,
    stall_s: float,
    emit: Callable[[Embedded | OutputInvalid], None],
) -> VectorServing | None:
    """The parts that serve a loaded model's vectors; None: the model is a decoder that makes none.
    `source` is the folder or repository that the model was loaded from. `room`, `stall_s` and
    `emit` are for the engine.

    Raises:
        ModelError: an encoder's files ask for something that this worker can't do.
    """
    try:
        parts = _of_encoder(loaded) if loaded.is_encoder else _of_decoder(loaded, source)
        if parts is None:
            return None
        texts = VectorTokenizer(
            loaded.tokenizer, loaded.vocabulary, parts.recipe, parts.score, pairs=parts.pairs
        )
    except RecipeError as error:
        if loaded.is_encoder:
            raise ModelError(str(error)) from error
        logger.warning("The model makes no vectors: %s", error)
        return None
    abilities: list[Ability] = [] if loaded.is_encoder or loaded.is_headless else ["text"]
    if "embedding" in parts.heads:
        abilities.append("embedding")
    abilities += ["score", "token_vectors"] if parts.recipe.marks is not None else ["score"]
    pad = loaded.config.get("pad_token_id")
    pad_token_id = pad if isinstance(pad, int) and 0 <= pad < loaded.vocabulary else 0
    return VectorServing(
        tuple(abilities),
        texts,
        VectorEngine(parts.backbone, parts.heads, room, stall_s, pad_token_id, emit),
    )


class _VectorParts(NamedTuple):
    """The parts of a model that makes vectors. `score` is how the model compares texts. With
    `pairs` the model takes two texts at once.
    """

    recipe: Recipe
    backbone: Backbone
    heads: dict[VectorKind, PoolHead]
    score: VectorKind
    pairs: bool = False


def _of_encoder(loaded: LoadedModel) -> _VectorParts:
    recipe = read_recipe(loaded.folder, loaded.config, encoder_pooling(loaded.config))
    backbone = Encoder(loaded.model)
    if scores(loaded.config):
        head = ClassHead(loaded.model, loaded.config)
        return _VectorParts(recipe, backbone, {"score": head}, "score", pairs=True)
    if recipe.marks is not None:
        return _VectorParts(recipe, backbone, {"maxsim": TokenHead(recipe)}, "maxsim")
    vectors = VectorHead(recipe)
    return _VectorParts(recipe, backbone, {"embedding": vectors, "cosine": vectors}, "cosine")


def _of_decoder(loaded: LoadedModel, source: str) -> _VectorParts | None:
    backbone = Decoder.of(loaded.model)
    if backbone is None:
        return None
    recipe = read_recipe(loaded.folder, loaded.config, "lasttoken")
    if (marks := recipe.marks) is not None:
        if marks.expanded and not marks.expansion_seen:
            raise RecipeError(
                "Queries of this model are expanded by tokens that no token sees, and here tokens "
                "of a decoder see all earlier tokens."
            )
        return _VectorParts(recipe, backbone, {"maxsim": TokenHead(recipe)}, "maxsim")
    vectors = VectorHead(recipe)
    heads: dict[VectorKind, PoolHead] = {"embedding": vectors, "cosine": vectors}
    if (ids := recipe.yes_no or _yes_no(loaded, source)) is None:
        return _VectorParts(recipe, backbone, heads, "cosine")
    return _VectorParts(recipe, backbone, {**heads, "score": YesHead(loaded.model, *ids)}, "score")


def _yes_no(loaded: LoadedModel, source: str) -> tuple[int, int] | None:
    """The ids of "yes" and "no" if the model is Qwen3-Reranker. Only the name of its `source`
    tells, since the files don't.
    """
    kind = str(loaded.config.get("model_type"))
    if not kind.startswith("qwen3") or "rerank" not in source.lower():
        return None
    yes, no = (_only_token(loaded.tokenizer, word) for word in ("yes", "no"))
    return None if yes is None or no is None else (yes, no)


def _only_token(tokenizer: Any, word: str) -> int | None:
    ids = list(tokenizer.encode(word, add_special_tokens=False))
    return int(ids[0]) if len(ids) == 1 else None


class VectorTokenizer:
    """Tokenizes the texts of requests for vectors, and makes jobs of the requests."""

    def __init__(
        self, tokenizer: Any, vocabulary: int, recipe: Recipe, score: VectorKind, *, pairs: bool
    ) -> None:
        """`score` is how texts are compared. With `pairs` the model takes two texts at once.

        Raises:
            RecipeError: the tokenizer lacks a token of the recipe.
        """
        self._tokenizer = tokenizer_inside(tokenizer)
        self._vocabulary = vocabulary
        self._recipe = recipe
        self._score = score
        self._pairs = pairs
        self._late = None if recipe.marks is None else LateTexts(self._tokenizer, recipe.marks)
        end = self._tokenizer.eos_token_id
        self._blank = [] if end is None else [int(end)]

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of a text by the model's files; None if they don't say it."""
        return self._recipe.most_tokens

    def prepare(self, embed: Embed, context: Context) -> VectorJob | RequestFailed:
        """The job of a request; RequestFailed if one of its texts or settings is refused."""
        try:
            return self._prepare(embed, context)
        except PromptError as error:
            return RequestFailed(
                request_id=embed.request_id,
                code=error.code,
                message=error.message,
                field=error.field,
            )

    def _prepare(self, embed: Embed, context: Context) -> VectorJob:
        most = min(context.tokens, self._recipe.most_tokens or context.tokens)
        cut = None
        if embed.truncate is not None:
            cut = most if embed.truncate == -1 else embed.truncate
            if cut > most:
                raise _invalid(
                    f"truncate_prompt_tokens is {cut}, more than the {most} tokens that this model "
                    "takes of a text.",
                    "truncate",
                )
        kind: VectorKind = "embedding" if embed.query is None else self._score
        texts = self._texts(embed, kind, most, cut)
        # For these the query is the first of the texts.
        first = 1 if kind in ("cosine", "maxsim") else 0
        for index, text in enumerate(texts):
            where = f"at {index - first}" if index >= first else "of the query"
            bound = most if index >= first else self._most_of_query(most)
            self._check(text, where, bound, context)
        return VectorJob(
            embed.request_id,
            kind,
            texts,
            embed.priority,
            self._dimensions(embed),
            embed.sharer,
            embed.share,
        )

    def _texts(
        self, embed: Embed, kind: VectorKind, most: int, cut: int | None
    ) -> list[TokenizedText]:
        inputs: Sequence[Any] = embed.inputs
        if kind == "embedding":
            prompt = self._prompt(embed.prompt_name, embed.role)
            return self._tokens(inputs, prompt, most, cut)
        query = TextPrompt(embed.query or "")
        if kind == "cosine":
            asked = self._tokens([query], self._prompt(None, "query"), most, cut)
            return asked + self._tokens(inputs, self._prompt(None, "document"), most, cut)
        documents = [_text(document) for document in inputs]
        if self._late is not None:
            return self._marked(self._late, query.text, documents, most, cut)
        if self._pairs:
            return self._encode([(query.text, document) for document in documents], most, cut)
        return [self._question(query.text, text, cut) for text in documents]

    def _tokens(
        self, inputs: Sequence[Any], prompt: str, most: int, cut: int | None
    ) -> list[TokenizedText]:
        """The tokens of all inputs, in their order. Inputs that are token ids stay as they are."""
        texts = [
            prompt + text_prompt.text
            for text_prompt in inputs
            if isinstance(text_prompt, TextPrompt)
        ]
        encoded = iter(self._encode(texts, most, cut))
        skipped = 0 if self._recipe.with_prompt or not prompt else self._prompt_tokens(prompt)
        tokenized = []
        for document in inputs:
            if isinstance(document, TextPrompt):
                text = next(encoded)
                tokenized.append(TokenizedText(text.token_ids, text.types, skipped))
            else:
                tokenized.append(TokenizedText(_unpack(document.token_ids)[:cut]))
        return tokenized

    def _encode(self, texts: Sequence[Any], most: int, cut: int | None) -> list[TokenizedText]:
        """The tokens of texts, or of pairs of texts."""
        if not texts:
            return []
        for index, text in enumerate(texts):
            characters = len(text) if isinstance(text, str) else sum(map(len, text))
            least = characters // _MOST_CHARACTERS_PER_TOKEN
            if cut is None and least > most:
                # A tokenizer would spend minutes and gigabytes on such a text.
                raise _too_long(f"at {index}", f"at least {least}", most, "")
        if cut is not None:
            characters = (cut + 1) * _MOST_CHARACTERS_PER_TOKEN
            texts = [
                text[:characters]
                if isinstance(text, str)
                else (text[0][:characters], text[1][:characters])
                for text in texts
            ]
        encoded = self._tokenizer(
            texts, truncation=cut is not None, max_length=cut, padding=False, verbose=False
        )
        types = encoded.get("token_type_ids")
        return [
            # Some tokenizers make no token of an empty text.
            TokenizedText(list(ids) or self._blank, None if types is None else list(types[index]))
            for index, ids in enumerate(encoded["input_ids"])
        ]

    def _marked(
        self, late: LateTexts, query: str, documents: list[str], most: int, cut: int | None
    ) -> list[TokenizedText]:
        """The tokens of a query and of documents, each cut so that its prefix has room."""

        def encoded(texts: list[str], most: int, prefixes: int) -> list[TokenizedText]:
            short = None if cut is None else max(1, min(cut, most) - prefixes)
            return self._encode(texts, most, short)

        return [
            *map(late.query, encoded([query], self._most_of_query(most), late.query_prefixes)),
            *map(late.document, encoded(documents, most, late.document_prefixes)),
        ]

    def _most_of_query(self, most: int) -> int:
        marks = self._recipe.marks
        return most if marks is None else min(most, marks.query_tokens)

    def _question(self, query: str, document: str, cut: int | None) -> TokenizedText:
        asked = f"<Instruct>: {_TASK}\n<Query>: {query}\n<Document>: {document}"
        parts = [self._plain(text) for text in (_BEFORE, asked, _BEHIND)]
        if cut is not None:
            parts[1] = parts[1][: max(0, cut - len(parts[0]) - len(parts[2]))]
        return TokenizedText([token for part in parts for token in part])

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _prompt_tokens(self, prompt: str) -> int:
        """How many tokens a prompt has, as sentence-transformers counts them: without the special
        token that ends a text.
        """
        ids = list(self._tokenizer.encode(prompt))
        return len(ids) - (bool(ids) and ids[-1] in self._tokenizer.all_special_ids)

    def _prompt(self, name: str | None, role: str | None) -> str:
        prompts = self._recipe.prompts
        if name is not None:
            if name not in prompts:
                known = ", ".join(sorted(prompts)) or "none"
                raise _invalid(
                    f"prompt_name is {name!r}, but the prompts of the model's files are: {known}.",
                    "prompt_name",
                )
            return prompts[name]
        for prefix in _ROLES.get(role or "", ()):
            if prefix in prompts:
                return prompts[prefix]
        return prompts.get(self._recipe.default_prompt or "", "")

    def _check(self, text: TokenizedText, where: str, most: int, context: Context) -> None:
        if not text.token_ids:
            raise _invalid(f"The text {where} is empty: it has no token.", "inputs")
        if len(text.token_ids) > most:
            raise _too_long(where, str(len(text.token_ids)), most, context.note)
        unknown = next(
            (token_id for token_id in text.token_ids if token_id >= self._vocabulary), None
        )
        if unknown is not None:
            raise _invalid(
                f"The input {where} has token id {unknown}; this model knows 0 to "
                f"{self._vocabulary - 1}.",
                "inputs",
            )

    def _dimensions(self, embed: Embed) -> int | None:
        wanted, possible = embed.dimensions, self._recipe.dimensions
        if wanted is None or possible is True or (possible and wanted in possible):
            return wanted
        why = "config.json has neither is_matryoshka nor matryoshka_dimensions"
        if possible:
            why = f"config.json allows {', '.join(map(str, possible))}"
        raise _invalid(f"dimensions: vectors of this model can't be cut so: {why}.", "dimensions")


def _text(prompt: Any) -> str:
    if isinstance(prompt, TextPrompt):
        return prompt.text
    raise _invalid("Only texts can be compared, not token ids.", "inputs")


def _unpack(packed: bytes) -> list[int]:
    try:
        return unpack(packed)
    except ValueError as error:
        raise _invalid(f"Unreadable token ids: {error}.", "inputs") from error


def _invalid(message: str, field: RequestField) -> PromptError:
    return PromptError("invalid_request_error", message, field)


def _too_long(where: str, tokens: str, most: int, note: str) -> PromptError:
    # Clients tell this error from others by the first words of the message.
    return PromptError(
        "context_length_exceeded",
        f"This model's maximum context length is {most} tokens. However, the prompt is too long: "
        f"the input {where} has {tokens}.{note} Shorten it, or send truncate_prompt_tokens.",
        "inputs",
    )
