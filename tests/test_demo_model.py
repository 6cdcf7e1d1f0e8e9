"""The embedded demo model answers everything in its dialogues exactly, through mlx-lm alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

mlx_lm = pytest.importorskip("mlx_lm")
from mlx_lm.generate import batch_generate  # noqa: E402
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer  # noqa: E402

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "gateway" / "demo_model"
BATCH = 32

# Every so many-th conversation in the quick form; all of them in the slow one.
EVERY = pytest.mark.parametrize(
    "every", [pytest.param(29, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


def load_corpus_module() -> ModuleType:
    """Import deploy/demo_model/corpus.py, which is not part of any package."""
    path = ROOT / "deploy" / "demo_model" / "corpus.py"
    spec = importlib.util.spec_from_file_location("demo_model_corpus", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


corpus_module = load_corpus_module()
CORPUS = corpus_module.Corpus()
CASES = {case.name: case for case in CORPUS.cases()}


class Demo:
    """The loaded model and what the tests do with it."""

    def __init__(self) -> None:
        """Load it as a worker does."""
        self.model, self.tokenizer = mlx_lm.load(str(FOLDER))

    def render(self, case: Any) -> str:
        """Return the prompt of a case as text."""
        if not case.messages:
            return case.prompt
        return self.tokenizer.apply_chat_template(
            case.messages,
            tools=case.tools,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=case.thinking,
        )

    def ids(self, text: str) -> list[int]:
        """Encode a text."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def answers(self, cases: list[Any]) -> dict[str, str]:
        """Answer all cases greedily, 32 at a time."""
        cases = sorted(cases, key=lambda case: len(case.answer))
        response = batch_generate(
            self.model,
            self.tokenizer,
            [self.ids(self.render(case)) for case in cases],
            max_tokens=[len(self.ids(case.answer)) + 8 for case in cases],
            completion_batch_size=BATCH,
            prefill_batch_size=BATCH,
        )
        return {case.name: text for case, text in zip(cases, response.texts, strict=True)}

    def check(self, cases: list[Any]) -> None:
        """Compare all answers with what was expected."""
        answers = self.answers(cases)
        wrong = {c.name: answers[c.name] for c in cases if answers[c.name] != c.answer}
        assert cases
        assert not wrong


@pytest.fixture(scope="module")
def demo() -> Demo:
    """Load the model once."""
    return Demo()


def test_size_and_files() -> None:
    """The package stays small, and holds data only."""
    names = {path.name for path in FOLDER.iterdir()}
    assert names == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 3_000_000


def test_tokenizer(demo: Demo) -> None:
    """The wrapper finds the fast detokenizer, both end tokens, thinking and the tool parser."""
    tokenizer = demo.tokenizer
    ends = {demo.ids("<|im_end|>")[0], demo.ids("<|endoftext|>")[0]}
    assert isinstance(tokenizer.detokenizer, BPEStreamingDetokenizer)
    assert set(tokenizer.eos_token_ids) == ends
    assert tokenizer.has_thinking
    assert tokenizer.has_tool_calling
    assert tokenizer.tool_call_start == "<tool_call>"
    for marker in ("<think>", "</think>", "<tool_call>", "</tool_call>"):
        ids = demo.ids(marker)
        assert len(ids) == 1
        assert tokenizer.decode(ids, skip_special_tokens=True) == marker
    assert tokenizer.decode(demo.ids("a<|im_end|>"), skip_special_tokens=True) == "a"


def test_template_is_the_one_trained_with() -> None:
    """The shipped template is the one the model learned."""
    source = ROOT / "deploy" / "demo_model" / "chat_template.jinja"
    assert (FOLDER / "chat_template.jinja").read_bytes() == source.read_bytes()


@pytest.mark.slow
@EVERY
def test_every_wording_is_answered_exactly(demo: Demo, every: int) -> None:
    """Every question of every dialogue, known or not, without a system message."""
    demo.check([case for name, case in CASES.items() if name.count("/") == 1][::every])


@EVERY
@pytest.mark.parametrize("kind", ["system", "tools", "lower"])
def test_surroundings_do_not_matter(demo: Demo, kind: str, every: int) -> None:
    """A system message, tools nobody needs, or small letters leave the answers as they are."""
    wanted = [case for name, case in CASES.items() if name.endswith(f"/0/{kind}")]
    demo.check([case for case in wanted if "tool-" not in case.name][::every])


@EVERY
def test_thinking_only_when_asked(demo: Demo, every: int) -> None:
    """With thinking every answer begins with the block, and a typed /think does the same."""
    cases = [
        case
        for name, case in CASES.items()
        if name.endswith("/0/think") and not name.startswith("tool-two")
    ]
    demo.check(cases[::every])
    assert all(case.answer.startswith("<think>\n") for case in cases)
    assert not any("<think>" in case.answer for case in CASES.values() if not case.thinking)
    case = CASES["fit/0/think"]
    typed = [{"role": "user", "content": case.messages[0]["content"] + " /think"}]
    plain = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    assert demo.tokenizer.apply_chat_template(typed, **plain) == demo.render(case)


# It takes the state `unloaded` for the outcome of an unload.
MISTAKEN = "tool-status/demo/4/result"


@EVERY
@pytest.mark.parametrize("kind", ["call", "result", "without"])
def test_tools(demo: Demo, kind: str, every: int) -> None:
    """Calls copy the model's name, answers use the result, and without tools it says so.

    So small a model doesn't use every result rightly. It does with those of a single call about a
    single model, but for `MISTAKEN`.
    """
    wanted = [
        case
        for name, case in CASES.items()
        if name.endswith(f"/{kind}") and name.startswith(("tool-status", "tool-unload"))
        if name != MISTAKEN
    ]
    demo.check(wanted[::every])


def test_calls_parse(demo: Demo) -> None:
    """The parser that mlx-lm infers reads every call, and two at once."""
    for name, case in CASES.items():
        if name.endswith("/call"):
            parts = case.answer.split("<tool_call>")[1:]
            calls = [demo.tokenizer.tool_parser(p.removesuffix("\n")[:-12]) for p in parts]
            assert len(calls) == (2 if name.startswith("tool-two") else 1)
            assert all(set(call) == {"name", "arguments"} for call in calls)
    only = CASES["tool-status/qwen3-4b/0/call"].answer
    inner = only.removeprefix("<tool_call>").removesuffix("</tool_call>")
    call = {"name": "get_model_status", "arguments": {"model": "qwen3-4b"}}
    assert demo.tokenizer.tool_parser(inner) == call


def test_plain_text(demo: Demo) -> None:
    """Prompts without the chat template go on with prose, and end."""
    demo.check([case for case in CASES.values() if case.prompt])


def test_unknown_questions_get_the_fallback(demo: Demo) -> None:
    """Questions that were never trained are mostly recognised as unknown."""
    held_out = [
        corpus_module.Case(question, CORPUS.fallback.answer, [corpus_module.user(question)])
        for question in CORPUS.held_out
    ]
    answers = demo.answers(held_out)
    right = sum(answers[case.name] == case.answer for case in held_out)
    assert right >= len(held_out) - 2


def test_answers_suit_their_purpose(demo: Demo) -> None:
    """There are long answers, multi-byte ones and follow-ups to test with."""
    lengths = {d.id: len(demo.ids(d.answer)) for d in CORPUS.dialogues}
    assert sum(length >= 200 for length in lengths.values()) >= 5
    assert max(lengths.values()) >= 400
    assert len(demo.ids(CASES["text/Bulkhead is"].answer)) >= 200
    assert len(demo.ids("船")) > 1
    assert sum(not d.answer.isascii() for d in CORPUS.dialogues) >= 2
    assert sum(d.after is not None for d in CORPUS.dialogues) >= 3


def test_streamed_pieces_join_to_the_answer(demo: Demo) -> None:
    """The streaming detokenizer never shows half a character."""
    for name in ("japanese/0", "emoji/0", "german/0"):
        detokenizer = demo.tokenizer.detokenizer
        pieces = []
        for token in demo.ids(CASES[name].answer):
            detokenizer.add_token(token)
            pieces.append(detokenizer.last_segment)
        detokenizer.finalize()
        pieces.append(detokenizer.last_segment)
        assert "".join(pieces) == CASES[name].answer
        assert not any("\ufffd" in piece for piece in pieces)


def test_template_takes_lists_of_text_parts(demo: Demo) -> None:
    """Content in parts renders like the joined text, with the thinking mark at its end."""
    options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": True}
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "MLX?"}]
    rendered = [
        demo.tokenizer.apply_chat_template([{"role": "user", "content": content}], **options)
        for content in (parts, "What is MLX?")
    ]
    assert rendered[0] == rendered[1]
    assert rendered[0] == "<|im_start|>user\nWhat is MLX? /think<|im_end|>\n<|im_start|>assistant\n"


def test_template_renders_calls_as_they_were_written(demo: Demo) -> None:
    """A call in the history looks like what the model wrote, whichever way it is passed."""
    case = CASES["tool-status/demo/0/result"]
    assert CASES["tool-status/demo/0/call"].answer + "<|im_end|>" in demo.render(case)
    function = {"name": "get_model_status", "arguments": '{"model": "demo"}'}
    question, _, result = case.messages
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    text = demo.tokenizer.apply_chat_template(
        [question, message, result], tools=case.tools, **options
    )
    assert text == demo.render(case)
