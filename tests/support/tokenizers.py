"""Tokenizers of the kinds that mlx-lm tells apart, made when a test runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_lm.utils import load_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.support.shapes import DEMO

_WORDS = ("ship", "server", "door", "s", "of", "the", "a", "is")
_PUNCTUATION = (".", ",", "!", "?", "'", "\n", "n't", "do", "not")
_BYTES = [f"<0x{index:02X}>" for index in range(256)]


def byte_level(_folder: Path) -> Any:
    """GPT-2's kind: bytes as printable characters."""
    return load_tokenizer(DEMO)


def sentencepiece(folder: Path) -> Any:
    """Llama 2's kind: the decoder drops the first space."""
    decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    prefix = normalizers.Prepend("▁")
    return _pieces(folder, decoder, normalizers.Sequence([prefix, normalizers.Replace(" ", "▁")]))


def sentencepiece_whole(folder: Path) -> Any:
    """Gemma's kind: the decoder drops nothing."""
    decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _pieces(folder, decoder, normalizers.Replace(" ", "▁"))


def metaspace(folder: Path) -> Any:
    """T5's kind, which mlx-lm has no fast detokenizer for: the first space is dropped."""
    decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return _pieces(folder, decoder, normalizers.Replace(" ", "▁"))


def word_pieces(folder: Path) -> Any:
    """BERT's kind: spaces are put between words, but not before a comma."""
    words = ["[UNK]", *_WORDS, *(f"##{word}" for word in _WORDS), *_PUNCTUATION]
    vocabulary = {fromkey: index for index, fromkey in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _saved(folder, tokenizer)


KINDS: dict[str, Callable[[Path], Any]] = {
    "byte level": byte_level,
    "sentencepiece": sentencepiece,
    "sentencepiece, whole": sentencepiece_whole,
    "metaspace": metaspace,
    "word pieces": word_pieces,
}


def _pieces(folder: Path, decoder: decoders.Decoder, normalizer: normalizers.Normalizer) -> Any:
    words = [*(f"▁{word}" for word in _WORDS), *_WORDS]
    characters = ["▁", *(chr(index) for index in range(33, 127)), "\n", "ö"]
    parts = dict.fromkeys(["<unk>", *_BYTES, *characters])
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            parts[word[:end]] = None
    vocabulary = {part: index for index, part in enumerate(parts)}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, list(dict.fromkeys(merges)), byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoder
    return _saved(folder, tokenizer)


def _saved(folder: Path, tokenizer: Tokenizer) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load_tokenizer(folder)
