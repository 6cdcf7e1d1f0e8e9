"""The model that copies, through mlx-lm alone."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import generate_step

from bench.copying import copying_prompt, make_copying_model

pytestmark = pytest.mark.slow

# Source text in which no dozen tokens stand twice.
SHOWN = """\
def weigh(crates, scale):
    \"\"\"Kilograms of all crates, by a scale that shows pounds.\"\"\"
    total = 0.0
    for crate in crates:
        if crate.empty:
            continue
        total += scale.read(crate) * 0.4536
    return round(total, 3)


def unload(ship, quay):
    while (crate := ship.next_crate()) is not None:
        quay.put(crate, at=quay.free_place())
    quay.report(f"{ship.name} is empty")
""".splitlines()
FILE = "\n".join(SHOWN) + "\n"
EARLIER = "import harbour\n\nquay = harbour.Quay(places=12)\nprint(quay.free_place())\n"


class Copier:
    def __init__(self, folder: Path) -> None:
        self.model, self.tokenizer = mlx_lm.load(str(folder))

    def answer(self, messages: list[dict[str, str]], tokens: int = 300) -> str:
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        text: str = mlx_lm.generate(self.model, self.tokenizer, prompt, max_tokens=tokens)
        return text


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> Copier:
    return Copier(make_copying_model(tmp_path_factory.mktemp("copying") / "model"))


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_random_tokens_are_copied(copier: Copier) -> None:
    prompt = copying_prompt(100)
    steps = generate_step(mx.array(prompt), copier.model, max_tokens=100)
    assert [token for token, _ in steps] == prompt[16:]


def test_a_file_of_a_user_is_copied_to_its_end(copier: Copier) -> None:
    assert len(copier.tokenizer.encode(FILE)) > 100
    assert copier.answer([_turn("user", FILE)]) == FILE


def test_the_last_result_of_a_tool_counts_and_not_what_was_shown_before(copier: Copier) -> None:
    earlier = [
        _turn("tool", EARLIER),
        _turn("assistant", EARLIER),
        _turn("user", "Now the other."),
    ]
    messages = [_turn("system", "You write files."), _turn("user", "Read it."), *earlier]
    assert copier.answer([*messages, _turn("assistant", "Read."), _turn("tool", FILE)]) == FILE


def test_lines_that_the_user_changes_are_changed_in_the_copy(copier: Copier) -> None:
    changed = [*SHOWN[:6], "        total += scale.kilograms(crate)", *SHOWN[7:]]
    lines = "\n".join(changed[3:8])
    order = _turn("user", f"Write it with this.\n<change>\n{lines}</change>")
    messages = [
        _turn("user", "Read it."),
        _turn("assistant", "Read."),
        _turn("tool", FILE),
        order,
    ]
    assert copier.answer(messages) == "\n".join(changed) + "\n"


def test_a_quantized_model_of_wide_heads_copies_too(tmp_path: Path) -> None:
    wide = {
        "num_hidden_layers": 3,
        "hidden_size": 768,
        "intermediate_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
    }
    model, _ = mlx_lm.load(str(make_copying_model(tmp_path / "wide", wide, bits=4)))
    prompt = copying_prompt(20)
    steps = generate_step(mx.array(prompt), model, max_tokens=20)
    assert [token for token, _ in steps] == prompt[16:]
