"""Does a text survive its way through the tokenizer, and do answers end where the template ends
them?
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any, Final

from protocol.check import CheckFinding
from protocol.encoders import encoder_of
from protocol.model_folder import end_token_ids
from protocol.requests import ChatMessage, ChatPrompt
from worker.errands.check.subject import Findings, SectionSkipped, Subject, Teller
from worker.mlx_lm.text import detokenizer_after, tokenizer_inside
from worker.system.errors import PromptError, one_sentence

TELL: Final = Teller("tokenizer")
_TEXTS: Final = {
    "English": "The quick brown fox jumps over 13 lazy dogs, doesn't it?",
    "code": "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n",
    "other scripts": "Grüße aus Köln, 日本語, русский, ελληνικά",
    "signs": '2 < 3 && x != y; {"key": [1.5, null]} 🙂',
}
_MARK: Final = "probed"
_MOST_NAMED: Final = 4


def check_the_tokenizer(subject: Subject) -> Findings:
    try:
        tokenizer = subject.tokenizer
    except SectionSkipped:
        raise
    except Exception as error:
        # transformers' readers fail in any way on damaged files.
        yield TELL.fault(
            "The tokenizer can't be loaded.",
            one_sentence(error),
            "Pull the tokenizer's files again, or copy them from the original model.",
        )
        return "There is no tokenizer."
    yield from _vocabulary(subject, tokenizer)
    yield from _round_trip(subject, tokenizer)
    yield from _added(tokenizer)
    if encoder_of(subject.config) is None:
        yield from _ends(subject, tokenizer)
    ends = ", ".join(_named(tokenizer, sorted(tokenizer.eos_token_ids)))
    return f"{len(tokenizer.get_vocab()):,} tokens; answers end with {ends or 'no token'}."


def _vocabulary(subject: Subject, tokenizer: Any) -> Iterator[CheckFinding]:
    rows = subject.text_config.get("vocab_size")
    highest = max(tokenizer.get_vocab().values())
    if isinstance(rows, int) and highest >= rows:
        beyond = sum(token_id >= rows for token_id in tokenizer.get_vocab().values())
        yield TELL.fault(
            "The tokenizer has tokens for which the model has no embedding.",
            f"{beyond} of its ids, up to {highest}, are beyond vocab_size {rows}.",
            "Take the tokenizer's files of this very model.",
        )


def _round_trip(subject: Subject, tokenizer: Any) -> Iterator[CheckFinding]:
    loose = encoder_of(subject.config) is not None
    changed = {}
    for kind, text in _TEXTS.items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        again = _decoded(tokenizer, ids)
        if again.strip() != text.strip() and not (loose and _letters(again) == _letters(text)):
            changed[kind] = again
    if not changed or (loose and set(changed) <= {"other scripts", "signs"}):
        return
    kind, again = next(iter(changed.items()))
    text = f"{', '.join(changed)}: {_TEXTS[kind]!r} comes back as {again!r}."
    remedy = "Copy the tokenizer's files of the original model."
    if kind in ("English", "code"):
        yield TELL.fault("Texts change on their way through the tokenizer.", text, remedy)
    else:
        yield TELL.warning("Some texts change on their way through the tokenizer.", text, remedy)


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    """The text of token ids, as answers are written."""
    detokenizer = detokenizer_after(tokenizer.encode("a", add_special_tokens=False), tokenizer)
    text = ""
    for token_id in ids:
        detokenizer.add_token(token_id)
        text += detokenizer.last_segment
    detokenizer.finalize()
    return text + detokenizer.last_segment


def _letters(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in plain if letter.isalnum())


def _added(tokenizer: Any) -> Iterator[CheckFinding]:
    broken = {}
    for text, token_id in sorted(tokenizer.get_added_vocab().items()):
        ids = list(tokenizer.encode(text, add_special_tokens=False))
        if ids != [token_id]:
            broken[text] = ids
    if broken:
        text, ids = next(iter(broken.items()))
        yield TELL.fault(
            "Added tokens aren't read as themselves.",
            f"{len(broken)} of them, as {text!r}, which becomes {ids[:_MOST_NAMED]}.",
            "Copy tokenizer.json and tokenizer_config.json of the original model.",
        )


def _ends(subject: Subject, tokenizer: Any) -> Iterator[CheckFinding]:
    known = {int(token_id) for token_id in tokenizer.eos_token_ids}
    if not known:
        yield TELL.fault(
            "No token ends an answer.",
            "Neither generation_config.json nor config.json nor the tokenizer names one.",
            "Set eos_token_id in generation_config.json.",
        )
        return
    special = set(tokenizer_inside(tokenizer).all_special_ids)
    special |= set(tokenizer.get_added_vocab().values())
    if plain := known - special:
        yield TELL.fault(
            "Ordinary tokens end answers.",
            f"{', '.join(_named(tokenizer, sorted(plain)))} in eos_token_id is no special token.",
            "Set eos_token_id in generation_config.json to that of the original model.",
        )
    try:
        ending = turn_end(subject)
    except (PromptError, SectionSkipped):
        return
    if ending is None or ending in known:
        return
    if _begins_turns(subject, ending):
        yield TELL.fault(
            "The template ends no turn.",
            f"After an answer it goes on with {_named(tokenizer, [ending])[0]}, which begins the "
            "next turn.",
            "Copy chat_template from the original model.",
        )
    else:
        where = "generation_config.json" if end_token_ids(subject.folder) else "config.json"
        yield TELL.fault(
            "The token that ends a turn of the template doesn't end an answer.",
            f"The template ends turns with {_named(tokenizer, [ending])[0]}; answers end with "
            f"{', '.join(_named(tokenizer, sorted(known)))}.",
            f"Add {ending} to eos_token_id in {where}.",
        )


def _begins_turns(subject: Subject, token_id: int) -> bool:
    token = str(subject.tokenizer.convert_ids_to_tokens(token_id))
    text = subject.chat.text(ChatPrompt((ChatMessage("user", "a"),)), None, lambda _: "a")
    behind_first = text.removeprefix(subject.tokenizer.bos_token or "").lstrip()
    return text.startswith(token) or behind_first.startswith(token)


def turn_end(subject: Subject) -> int | None:
    """The special token that follows an answer in the template; None: no such token does."""
    if subject.format.harmony:
        return None  # Its answers end with another token than its turns.
    messages = (
        ChatMessage("user", "a"),
        ChatMessage("assistant", _MARK),
        ChatMessage("user", "b"),
    )
    text = subject.chat.text(ChatPrompt(messages), None, lambda message: message.content)
    _, mark, after = text.rpartition(_MARK)
    if not mark:
        return None
    added = subject.tokenizer.get_added_vocab()
    after = after.lstrip()
    longest_first = sorted(added, key=len, reverse=True)
    return next((int(added[token]) for token in longest_first if after.startswith(token)), None)


def _named(tokenizer: Any, ids: list[int]) -> list[str]:
    return [f"{tokenizer.convert_ids_to_tokens(token_id)} ({token_id})" for token_id in ids]
