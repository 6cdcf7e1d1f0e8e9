"""Errands about models: whether models can be loaded here, and how fast a model generates."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any, Final, NamedTuple

from protocol.architectures import is_mlx_vlms
from protocol.errands import Examine, Examined, Generated, Measure, Measured, SameText
from protocol.model_files import read_config
from protocol.requests import ChatMessage, ChatPrompt
from worker.engines.batched_engine import BatchedEngine
from worker.engines.room import CacheRoom
from worker.engines.room import measure as measure_caches
from worker.engines.sequence import Sequence
from worker.errands import Errand
from worker.load.files import check_files, find_folder
from worker.load.loading import LoadedModel, classes_of, load, needs_mlx_vlm, read_tokenizer
from worker.system.errors import ModelError, one_sentence
from worker.template.chat_template import ChatTemplate

# A prompt of so many tokens tells how long a longer one takes.
_TRIED_TOKENS: Final = 256


def examine(errand: Errand) -> None:
    """Examine one model after another, and answer after each. If a model kills this process, the
    earlier answers are not lost.
    """
    errand.answer_versions()
    for source in errand.read(Examine).sources:
        errand.answer(_examined(source))


def _examined(source: str) -> Examined:
    try:
        folder = find_folder(source)
        check_files(folder)
    except ModelError as error:
        return Examined(source, "files", error.reason)
    try:
        config = read_config(folder)
        if not (needs_mlx_vlm(config) and is_mlx_vlms(config["model_type"])):
            classes_of(config)
    except Exception as error:
        # mlx-lm imports the architecture's module, which may fail in any way.
        return Examined(source, "architecture", one_sentence(error))
    try:
        tokenizer = read_tokenizer(folder)
        tokenizer.encode("Hello")
    except Exception as error:
        return Examined(source, "tokenizer", _root(error))
    return _templated(source, tokenizer)


def _templated(source: str, tokenizer: Any) -> Examined:
    if not tokenizer.has_chat_template:
        return Examined(source)
    try:
        if not ChatTemplate(tokenizer).tokens(ChatPrompt((ChatMessage("user", "Hello"),))):
            return Examined(source, "template", "it makes nothing of a message", chats=True)
    except Exception as error:
        # A template is a program, and may fail in any way.
        return Examined(source, "template", _root(error), chats=True)
    return Examined(source, chats=True)


def _root(error: Exception) -> str:
    """The text of an error's cause, which lacks the error's advice to a client or an operator."""
    return one_sentence(error.__cause__ if isinstance(error.__cause__, Exception) else error)


def measure(errand: Errand) -> None:
    """Answer with the times that a model needs for an answer and for a long prompt, as a worker
    does for one request.
    """
    errand.answer_versions()
    asked = errand.read(Measure)
    try:
        loaded = load(asked.source, lambda _done, _total: None, lambda: False)
    except ModelError as error:
        sys.exit(error.reason)
    prompt_ids = list(loaded.tokenizer.encode(asked.prompt))
    answers = [_generate(loaded, prompt_ids, asked.tokens) for _ in range(asked.times)]
    tokens = min(asked.long_tokens, _TRIED_TOKENS)
    long_s = _long_prompt(loaded, prompt_ids, tokens)
    if asked.long_tokens > tokens:
        tokens = max(tokens, min(asked.long_tokens, int(tokens / long_s * asked.long_s)))
        long_s = min(_long_prompt(loaded, prompt_ids, tokens) for _ in range(asked.times // 2))
    errand.answer(
        Measured(min(answer.rest_s for answer in answers), tuple(prompt_ids), tokens, long_s)
    )


class _AnswerTimes(NamedTuple):
    """The seconds until the first token, and from that to the last."""

    first_s: float
    rest_s: float


def _long_prompt(loaded: LoadedModel, prompt_ids: list[int], tokens: int) -> float:
    """The seconds for a prompt of `tokens` tokens."""
    repeated = list(itertools.islice(itertools.cycle(prompt_ids), tokens))
    return _generate(loaded, repeated, 1).first_s


def _generate(loaded: LoadedModel, prompt_ids: list[int], tokens: int) -> _AnswerTimes:
    engine = BatchedEngine(loaded.model, (), 1, CacheRoom(measure_caches(loaded.model)))
    engine.add(Sequence("measured", prompt_ids, tokens, sampling=None, ignore_eos=True))
    answer_tokens, began, first = 0, time.monotonic(), 0.0
    while answer_tokens < tokens:
        new = len(engine.step())
        if answer_tokens == 0 and new:
            first = time.monotonic()
        answer_tokens += new
    ended = time.monotonic()
    engine.close()
    return _AnswerTimes(first - began, ended - first)


def compare(errand: Errand) -> None:
    """Answer how many greedy texts are the same alone and in a batch."""
    errand.answer_versions()
    asked = errand.read(Generated)
    loaded = load(asked.source, lambda _done, _total: None, lambda: False)
    prompts = [list(loaded.tokenizer.encode(prompt)) for prompt in asked.prompts]
    alone = [_texts(loaded, [prompt], asked.tokens)[0] for prompt in prompts]
    together = _texts(loaded, prompts, asked.tokens)
    errand.answer(SameText(sum(map(list.__eq__, alone, together)), len(prompts)))


def _texts(loaded: LoadedModel, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """The tokens that follow each prompt, made in one batch."""
    rows = len(prompts)
    engine = BatchedEngine(loaded.model, (), rows, CacheRoom(measure_caches(loaded.model)))
    answers: dict[str, list[int]] = {str(row): [] for row in range(rows)}
    for row, prompt in zip(answers, prompts, strict=True):
        engine.add(Sequence(row, prompt, tokens, sampling=None, ignore_eos=True))
    while any(len(answer) < tokens for answer in answers.values()):
        for token in engine.step():
            answers[token.request_id].append(token.token_id)
    engine.close()
    return list(answers.values())
