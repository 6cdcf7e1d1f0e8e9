"""Prompts to token ids. Runs beside the engine, so that a long prompt stalls nobody's stream."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from protocol.messages import ChatPrompt, Generate, RequestErrorCode, RequestFailed, TextPrompt
from worker.engines.sequence import Sequence
from worker.loading import LoadedModel
from worker.sampling import make_sampler


class _PromptError(Exception):
    """A request that can't be run, with the code and sentence for its client."""

    def __init__(self, code: RequestErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def prepare(
    generate: Generate, loaded: LoadedModel, context_tokens: int
) -> Sequence | RequestFailed:
    """Render, tokenize and check one request; a prompt that is empty, can't be rendered or doesn't
    fit the context is refused.
    """
    try:
        return _prepare(generate, loaded, context_tokens)
    except _PromptError as error:
        return RequestFailed(request_id=generate.request_id, code=error.code, message=error.message)


def _prepare(generate: Generate, loaded: LoadedModel, context_tokens: int) -> Sequence:
    token_ids = _tokenize(generate, loaded.tokenizer)
    if not token_ids:
        raise _PromptError("invalid_request_error", "The prompt is empty: send at least one token.")
    unknown = next((each for each in token_ids if not 0 <= each < loaded.vocabulary), None)
    if unknown is not None:
        raise _PromptError(
            "invalid_request_error",
            f"The prompt has token id {unknown}; this model knows 0 to {loaded.vocabulary - 1}.",
        )
    room = context_tokens - len(token_ids)
    wanted = generate.max_tokens if generate.max_tokens is not None else max(room, 1)
    if wanted > room:
        raise _PromptError(
            "context_length_exceeded",
            f"The prompt has {len(token_ids)} tokens and max_tokens is {wanted}, together "
            f"{len(token_ids) + wanted}; this model's context holds {context_tokens}. Shorten "
            "the messages or ask for fewer tokens.",
        )
    return Sequence(
        request_id=generate.request_id,
        token_ids=token_ids,
        max_tokens=wanted,
        sampler=make_sampler(generate.sampling, loaded.sampling_defaults, loaded.vocabulary),
        ignore_eos=generate.ignore_eos,
    )


def _tokenize(generate: Generate, tokenizer: Any) -> list[int]:
    match generate.prompt:
        case ChatPrompt(messages):
            conversation = [{"role": each.role, "content": each.content} for each in messages]
            return _render(conversation, tokenizer)
        case TextPrompt(text):
            return list(tokenizer.encode(text))
        case tokens:
            return list(tokens.token_ids)


def _render(conversation: list[dict[str, str]], tokenizer: Any) -> list[int]:
    if not tokenizer.has_chat_template:
        raise _PromptError(
            "invalid_request_error",
            "This model has no chat template: use /v1/completions with a plain prompt.",
        )
    # mlx-lm's wrapper turns thinking on wherever a model can think. The template's own default is
    # what its author meant, so the wrapper renders only where it carries the renderer itself.
    renderer = tokenizer if tokenizer._chat_template is not None else tokenizer._tokenizer
    try:
        return list(
            renderer.apply_chat_template(
                conversation, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
    except TemplateError as error:
        raise _PromptError(
            "invalid_request_error", f"The model's chat template refuses these messages: {error}"
        ) from error
