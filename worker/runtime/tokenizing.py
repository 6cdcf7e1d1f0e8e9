"""What a prompt is in token ids: of chats, texts, infills, ids and pictures."""

from __future__ import annotations

from typing import Any

from protocol.prompts import ChatPrompt, TextPrompt, TokenPrompt
from protocol.requests import Generate, Tools
from protocol.tokens import unpack
from worker.load.loading import LoadedModel
from worker.runtime.infill import infill_prompt
from worker.system.errors import PromptError, one_sentence
from worker.vision.errors import PictureError, UnusablePicturesError
from worker.vision.inputs import PictureInputs


def tokenize(generate: Generate, loaded: LoadedModel) -> tuple[list[int], PictureInputs | None]:
    """Token ids, and what goes in with them.

    Raises: PromptError.
    """
    tokenizer = loaded.tokenizer
    match generate.prompt:
        case ChatPrompt() as prompt if prompt.pictures:
            return _look_at(prompt, generate.tools, loaded)
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
    """The prompt as text: as it came, or as its tokens read."""
    if isinstance(generate.prompt, TextPrompt):
        return generate.prompt.text
    return str(loaded.tokenizer.decode(prompt_ids))


def unpacked(packed: bytes) -> list[int]:
    """Raises: PromptError."""
    try:
        return unpack(packed)
    except ValueError as error:
        raise PromptError("invalid_request_error", f"Unreadable token ids: {error}.") from error


def _look_at(
    prompt: ChatPrompt, tools: Tools | None, loaded: LoadedModel
) -> tuple[list[int], PictureInputs]:
    eyes, pictures = loaded.eyes, prompt.pictures
    if eyes is None:
        raise PromptError(
            "invalid_request_error",
            f"{pictures[0].name}: this model was loaded without what looks at pictures.",
            picture=0,
        )
    text = loaded.chat_template.text(prompt, tools, eyes.content)
    try:
        return eyes.inputs(text, pictures)
    except PictureError as error:
        raise PromptError(
            "invalid_request_error",
            f"{pictures[error.number].name}: {error.reason}.",
            picture=error.number,
        ) from error
    except UnusablePicturesError as error:
        raise PromptError(
            "invalid_request_error",
            f"The model can't look at these pictures: {one_sentence(error)}",
            "prompt",
        ) from error


def _infill(prefix: str, suffix: str, tokenizer: Any) -> list[int]:
    token_ids = infill_prompt(prefix, suffix, tokenizer)
    if token_ids is None:
        raise PromptError(
            "invalid_request_error",
            "This model was not made to fill in the middle: it has no tokens for what stands "
            "before and after. Leave suffix out.",
            "suffix",
        )
    return token_ids
