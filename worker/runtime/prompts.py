"""Makes requests ready for the engine, on threads beside the engine thread, so that a long prompt
delays no other stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from protocol.answers import RequestFailed, RequestField
from protocol.message_base import BYTES_PER_TOKEN, unpack
from protocol.requests import (
    ChatPrompt,
    Generate,
    TextPrompt,
    TokenPrompt,
    Tools,
)
from worker.engines.room import Context, too_long
from worker.engines.sequence import BrokenSequence, Sequence
from worker.load.loading import LoadedModel
from worker.prompt_cache.path import BLOCK_TOKENS, ContentMark, Path, Paths
from worker.prompt_cache.snapshots import spread
from worker.sampling.adjustments import Adjustments, banned_sequences, make_adjustments
from worker.sampling.scores import LogprobWriter
from worker.sampling.settings import make_row_sampling
from worker.structure.budget import ReasoningBudget, reasoning_budget
from worker.structure.grammar import ConstraintError
from worker.structure.sampler import SequenceConstraint
from worker.system.errors import PromptError, one_sentence
from worker.template.chat_template import ChatTemplate
from worker.text.repetition import RepetitionWatch
from worker.text.stream import AnswerStream, answer_stream
from worker.vision import PictureInputs, UndecodablePictureError, UnusablePicturesError

# Some vocabularies have runs of spaces as single tokens. The longest known run has 128 spaces.
_MOST_CHARACTERS_PER_TOKEN: Final = 128
# More of a prediction than these for each token of the context isn't turned into tokens.
_CHARACTERS_PER_TOKEN: Final = 8
# One token for the name of a call, and one for its arguments.
_LEAST_TOKENS_PER_CALL: Final = 2
# The bound for a prompt of which only the tokens are counted, and which may be longer than the
# context. So many characters take some seconds.
_MOST_COUNTED_CHARACTERS: Final = 8 << 20
# The most tokens in all banned sequences. Each step compares them with the end of the answer.
_MOST_BANNED_TOKENS: Final = 4096
# The most scores of a prompt: one for each token and each alternative. All scores are held in
# memory and sent before the answer begins.
_MOST_PROMPT_SCORES: Final = 1 << 18


@dataclass(frozen=True)
class PreparedRequest:
    """A request that is ready to run.

    `prompt_ids` are the tokens of the prompt alone. `sequence`, `answer` and `repetition` also have
    the `delivered` tokens that another worker made. `logprobs` writes the scores of tokens, and
    `echo` is text that is sent before the answer. With `prompt_only` the sequence makes a token
    only for the sake of the prompt's scores. This token is not sent. With `rendered` the gateway
    needs `prompt_ids` and doesn't have them.
    """

    sequence: Sequence
    prompt_ids: list[int]
    delivered: int
    rendered: bool
    answer: AnswerStream
    logprobs: LogprobWriter
    echo: str
    prompt_only: bool
    repetition: RepetitionWatch


def prepare(
    generate: Generate, loaded: LoadedModel, context: Context, paths: Paths
) -> PreparedRequest | RequestFailed:
    """Render, tokenize and check one request. If another worker has begun the answer, continue it
    behind the tokens that were delivered.

    A request whose prompt is empty, can't be rendered or doesn't fit the context is refused.
    """
    try:
        return _prepare(generate, loaded, context, paths)
    except PromptError as error:
        return error.as_message(generate.request_id)


def _invalid(
    message: str, field: RequestField | None = None, picture: int | None = None
) -> PromptError:
    return PromptError("invalid_request_error", message, field, picture)


class InfillTokens(NamedTuple):
    """A model's special tokens for filling in text between a prefix and a suffix. Without `middle`
    the prefix comes last in the prompt, directly before the answer.
    """

    prefix: str
    suffix: str
    middle: str | None


_FORMS: Final = (
    # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Granite 4
    InfillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder, Granite Code
    InfillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    InfillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    # DeepSeek-Coder, which has wide bars
    InfillTokens("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),
    # CodeLlama
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),
    # Seed-Coder
    InfillTokens("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
    # Codestral
    InfillTokens("[PREFIX]", "[SUFFIX]", None),
)


def infill_prompt(prefix: str, suffix: str, tokenizer: Any) -> list[int] | None:
    """The prompt with which a model fills in text between `prefix` and `suffix`, as token ids;
    None: the model has no tokens for that. `tokenizer` is mlx-lm's wrapper.
    """
    vocabulary = tokenizer.get_vocab()
    form = next(
        (tokens for tokens in _FORMS if set(filter(None, tokens)) <= vocabulary.keys()), None
    )
    if form is None:
        return None
    before = [vocabulary[form.prefix], *_encode(prefix, tokenizer)]
    after = [vocabulary[form.suffix], *_encode(suffix, tokenizer)]
    # The tokenizer begins every text with these tokens.
    begin = list(tokenizer.encode(""))
    if form.middle is None:
        return [*begin, *after, *before]
    return [*begin, *before, *after, vocabulary[form.middle]]


def _encode(text: str, tokenizer: Any) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def tokenize(generate: Generate, loaded: LoadedModel) -> tuple[list[int], PictureInputs | None]:
    """The token ids of the prompt, and the inputs of its pictures, if it has pictures.

    Raises: PromptError.
    """
    tokenizer = loaded.tokenizer
    match generate.prompt:
        case ChatPrompt() as prompt if prompt.pictures:
            return _tokenize_pictures(prompt, generate.tools, loaded)
        case ChatPrompt() as prompt:
            token_ids = loaded.chat_template.tokens(prompt, generate.tools)
        case TextPrompt(text, str() as suffix):
            token_ids = _infill(text, suffix, tokenizer)
        case TextPrompt(text):
            token_ids = list(tokenizer.encode(text))
        case TokenPrompt(packed):
            token_ids = unpacked(packed)
    return token_ids, None


def text_of(generate: Generate, prompt_ids: list[int], loaded: LoadedModel) -> str:
    """The text of the prompt, as the client sent it or decoded from the tokens."""
    if isinstance(generate.prompt, TextPrompt):
        return generate.prompt.text
    return str(loaded.tokenizer.decode(prompt_ids))


def unpacked(packed: bytes) -> list[int]:
    """Raises: PromptError."""
    try:
        return unpack(packed)
    except ValueError as error:
        raise _invalid(f"Unreadable token ids: {error}.") from error


def _tokenize_pictures(
    prompt: ChatPrompt, tools: Tools | None, loaded: LoadedModel
) -> tuple[list[int], PictureInputs]:
    picture_processor, pictures = loaded.picture_processor, prompt.pictures
    if picture_processor is None:
        raise _invalid(
            f"{pictures[0].name}: this model was loaded without the part that looks at pictures.",
            picture=0,
        )
    text = loaded.chat_template.text(prompt, tools, picture_processor.content)
    try:
        return picture_processor.inputs(text, pictures)
    except UndecodablePictureError as error:
        raise _invalid(
            f"{pictures[error.number].name}: {error.reason}.", picture=error.number
        ) from error
    except UnusablePicturesError as error:
        raise _invalid(
            f"The model can't look at these pictures: {one_sentence(error)}", "prompt"
        ) from error


def _infill(prefix: str, suffix: str, tokenizer: Any) -> list[int]:
    token_ids = infill_prompt(prefix, suffix, tokenizer)
    if token_ids is None:
        raise _invalid(
            "This model was not made to fill in the middle: it has no tokens for the texts "
            "before and after. Leave suffix out.",
            "suffix",
        )
    return token_ids


def no_further(broken: BrokenSequence) -> RequestFailed:
    """The error for a sequence that can't go on because of its constraint or its pictures."""
    if broken.pictures:
        error = _invalid(f"The model can't look at these pictures: {broken.reason}", "prompt")
    else:
        message = f"The answer can't go on as its constraint wants it: {broken.reason}."
        error = _invalid(message, "constraint")
    return error.as_message(broken.request_id)


def _prepare(
    generate: Generate, loaded: LoadedModel, context: Context, paths: Paths
) -> PreparedRequest:
    _check_size(generate, context)
    prompt_ids, pictures = tokenize(generate, loaded)
    delivered = unpacked(generate.delivered)
    token_ids = prompt_ids + delivered
    _check_tokens(prompt_ids, token_ids, loaded.vocabulary)
    wanted = _wanted_tokens(generate, context, len(prompt_ids), len(delivered))
    prompt_only = wanted == 0 and not generate.counts
    sampling = make_row_sampling(
        generate.sampling,
        loaded.sampling_defaults,
        loaded.vocabulary,
        len(delivered),
        loaded.xtc_spared,
    )
    constrained = _constrain(generate, loaded, prompt_ids, delivered)
    answer = answer_stream(generate, prompt_ids, loaded.tokenizer, loaded.answer_format)
    repetition = RepetitionWatch(ends=generate.repetition_stop)
    for token_id in delivered:
        answer.add(token_id)
        repetition.add(token_id)
    # Scores of the prompt come before the first token, so the client has them if a token was
    # delivered.
    prompt_logprobs = None if delivered else generate.prompt_logprobs
    path = None
    if prompt_logprobs is None and not generate.cold:
        path = _find_path(generate, loaded, paths, token_ids, len(prompt_ids), pictures)
    elif prompt_logprobs is not None:
        # The scores need the logits of the prompt, and blocks of the prompt cache have no logits.
        # So the prompt is computed without these blocks.
        _check_prompt_logprobs(len(prompt_ids), prompt_logprobs)
    sequence = Sequence(
        request_id=generate.request_id,
        token_ids=token_ids,
        max_tokens=1 if prompt_only else wanted - len(delivered),
        sampling=sampling,
        ignore_eos=generate.ignore_eos,
        priority=generate.priority,
        budget=_budget(generate, prompt_ids, loaded),
        adjustments=_adjustments(generate, loaded, len(prompt_ids), len(prompt_ids) + wanted),
        stop_token_ids=generate.sampling.stop_token_ids,
        path=path,
        constrained=constrained,
        logprobs=generate.logprobs,
        prompt_logprobs=prompt_logprobs,
        pictures=pictures,
        prediction=_predicted(generate, loaded, context),
        sharer=generate.sharer,
        share=generate.share,
        cold=generate.cold,
    )
    return PreparedRequest(
        sequence,
        prompt_ids,
        len(delivered),
        # If only the tokens are counted, no other worker needs the ids, and the prompt may be
        # longer than any context.
        rendered=not (generate.counts or isinstance(generate.prompt, TokenPrompt)),
        answer=answer,
        logprobs=LogprobWriter(loaded.token_bytes, prompt_ids),
        echo=text_of(generate, prompt_ids, loaded) if generate.echo and not delivered else "",
        prompt_only=prompt_only,
        repetition=repetition,
    )


def _check_tokens(prompt_ids: list[int], token_ids: list[int], vocabulary: int) -> None:
    if not prompt_ids:
        raise _invalid("The prompt is empty: send at least one token.", "prompt")
    unknown = next((token_id for token_id in token_ids if token_id >= vocabulary), None)
    if unknown is not None:
        raise _invalid(
            f"The prompt has token id {unknown}; this model knows 0 to {vocabulary - 1}.", "prompt"
        )


def _wanted_tokens(generate: Generate, context: Context, prompt: int, delivered: int) -> int:
    """The most tokens that the answer may have, including the tokens that were delivered."""
    room = context.tokens - prompt
    if room < 1 and not generate.counts:
        why = f": it has {prompt}, which leaves no room for an answer"
        raise too_long(context, why, *_advice(generate))
    wanted = max(0, room if generate.max_tokens is None else min(generate.max_tokens, room))
    if wanted and delivered >= wanted:
        raise _invalid(f"{delivered} tokens were delivered already, of {wanted} at most.")
    return wanted


def _predicted(generate: Generate, loaded: LoadedModel, context: Context) -> tuple[int, ...]:
    """The tokens of the client's prediction, at most as many as the context has."""
    if not generate.prediction:
        return ()
    text = generate.prediction[: _CHARACTERS_PER_TOKEN * context.tokens]
    token_ids = _encode(text, loaded.tokenizer)[: context.tokens]
    # The model computes guesses, and can't compute a token that only its tokenizer knows.
    return tuple(token_id for token_id in token_ids if token_id < loaded.vocabulary)


def _find_path(
    generate: Generate,
    loaded: LoadedModel,
    paths: Paths,
    token_ids: list[int],
    prompt_tokens: int,
    pictures: PictureInputs | None,
) -> Path:
    boundaries: list[int] = []
    if paths.needs_boundaries:
        boundaries = find_boundaries(generate, token_ids[:prompt_tokens], loaded.chat_template)
    # All pictures have the same tokens, so marks tell prompts with different pictures apart.
    seen = () if pictures is None else pictures.seen
    marks = tuple(ContentMark(span.begin, span.digest) for span in seen)
    return paths.find(token_ids, generate.cache_salt, boundaries, marks)


def _advice(generate: Generate) -> tuple[str, RequestField]:
    """Advice to shorten the larger part of a prompt, and the name of that part."""
    prompt, tools = generate.prompt, generate.tools
    if isinstance(prompt, ChatPrompt) and tools is not None:
        message_characters = sum(len(message.content) for message in prompt.messages)
        if len(tools.definitions) > message_characters:
            return "Most of it are tools: send fewer, or describe them shorter.", "tools"
    return "Shorten the prompt.", "prompt"


def _budget(
    generate: Generate, prompt_ids: list[int], loaded: LoadedModel
) -> ReasoningBudget | None:
    if generate.reasoning_tokens is None:
        return None
    try:
        return reasoning_budget(
            prompt_ids, generate.reasoning_tokens, loaded.tokenizer, loaded.answer_format
        )
    except ValueError as error:
        raise _invalid(f"This model's reasoning can't be bounded: {error}") from error


def _constrain(
    generate: Generate, loaded: LoadedModel, prompt_ids: list[int], delivered: list[int]
) -> SequenceConstraint | None:
    try:
        return loaded.constraints.of(generate, prompt_ids, delivered)
    except ConstraintError as error:
        kind = generate.constraint.kind if generate.constraint is not None else "tools"
        raise _invalid(
            f"No answer can be made to match this {kind}: {error.reason}",
            "constraint" if generate.constraint is not None else "tools",
        ) from error


def _check_size(generate: Generate, context: Context) -> None:
    """Refuse a prompt that is far too long before its tokenization takes minutes and gigabytes."""
    match generate.prompt:
        case ChatPrompt(messages):
            calls = [call for message in messages for call in message.tool_calls]
            least_tokens = len(messages) + _LEAST_TOKENS_PER_CALL * len(calls)
            characters = sum(len(chat_message.content) for chat_message in messages)
            characters += sum(len(tool.name) + len(tool.arguments) for tool in calls)
            if generate.tools is not None:
                characters += len(generate.tools.definitions)
        case TextPrompt(text, suffix):
            least_tokens, characters = 1, len(text) + len(suffix or "")
        case TokenPrompt(packed):
            least_tokens, characters = len(packed) // BYTES_PER_TOKEN, 0
    # The template adds tokens for each message, each as much work as the longest token.
    work = characters + _MOST_CHARACTERS_PER_TOKEN * least_tokens
    if generate.counts and work <= _MOST_COUNTED_CHARACTERS:
        return
    least_tokens = max(least_tokens, characters // _MOST_CHARACTERS_PER_TOKEN)
    if least_tokens > context.tokens:
        raise too_long(context, f": it has at least {least_tokens}", *_advice(generate))


def _adjustments(
    generate: Generate, loaded: LoadedModel, prompt_tokens: int, most_tokens: int
) -> Adjustments | None:
    sampling = generate.sampling
    _check_ids("logit_bias", (token_id for token_id, _ in sampling.logit_bias), loaded.vocabulary)
    _check_ids("allowed_token_ids", sampling.allowed_token_ids, loaded.vocabulary)
    _check_ids("stop_token_ids", sampling.stop_token_ids, loaded.vocabulary)
    banned = banned_sequences(sampling.bad_words, loaded.tokenizer)
    if sum(map(len, banned)) > _MOST_BANNED_TOKENS:
        raise _invalid(
            f"bad_words have more than {_MOST_BANNED_TOKENS} tokens together.", "bad_words"
        )
    ends = () if generate.ignore_eos else loaded.eos_token_ids
    return make_adjustments(
        sampling, prompt_tokens, most_tokens, (*ends, *sampling.stop_token_ids), banned
    )


def _check_ids(field: RequestField, token_ids: Iterable[int], vocabulary: int) -> None:
    unknown = next((token_id for token_id in token_ids if token_id >= vocabulary), None)
    if unknown is not None:
        raise _invalid(
            f"{field} has token id {unknown}; this model knows 0 to {vocabulary - 1}.", field
        )


def _check_prompt_logprobs(tokens: int, alternatives: int) -> None:
    if tokens * (1 + alternatives) > _MOST_PROMPT_SCORES:
        raise _invalid(
            f"The prompt has {tokens} tokens. With {alternatives} alternatives to each, log "
            f"probabilities are given for at most {_MOST_PROMPT_SCORES // (1 + alternatives)}: "
            "shorten the prompt or ask for fewer alternatives.",
            "prompt_logprobs",
        )


def find_boundaries(generate: Generate, prompt_ids: list[int], template: ChatTemplate) -> list[int]:
    """The places, in tokens: the end of the system prompt, the end of the part that the
    conversation's next turn repeats, and before that the beginnings of some messages. The repeated
    part may lack the tokens that ask for an answer.
    """
    if not isinstance(generate.prompt, ChatPrompt) or generate.prompt.pictures:
        # A picture has more tokens in the prompt than the template writes for it.
        return [len(prompt_ids)]
    messages = generate.prompt.messages
    beginnings = [messages]
    if messages and messages[0].role in ("system", "developer"):
        beginnings.append(messages[:1])
    places = []
    for beginning in beginnings:
        try:
            alike = template.tokens(generate.prompt, generate.tools, beginning, asking=False)
        except PromptError:
            continue  # Many templates need a message of the user.
        places.append(_common(alike, prompt_ids))
    places = places or [len(prompt_ids)]
    depths = {start // BLOCK_TOKENS for start in template.message_starts(prompt_ids)}
    chosen = spread(depths, max(places) // BLOCK_TOKENS)
    return [*places, *(depth * BLOCK_TOKENS for depth in chosen)]


def _common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
