"""A check of a model with a planted fault names the fault, and one of a sound model names none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from protocol.check import CheckFinding, CheckModel
from tests.support.minilm import minilm
from tests.support.real_models import real_model
from tests.support.shapes import splittable
from tests.worker.errands.check import planted
from worker.errands.check.chat import check_the_template
from worker.errands.check.files import check_the_files
from worker.errands.check.numbers import check_the_numbers
from worker.errands.check.parser import check_the_parser
from worker.errands.check.subject import Findings, InvalidNumbersError, Subject
from worker.errands.check.tokens import check_the_tokenizer
from worker.errands.check.vectors import check_the_vectors

Section = Callable[[Subject], Findings]
# So long that every repair is tried.
_SECONDS = 10_000.0


def tiny(folder: Path) -> Path:
    return splittable(folder, "qwen3")


MODELS: dict[str, Callable[[Path], Path]] = {
    "smollm2": lambda _: real_model("smollm2"),
    "coder": lambda _: real_model("coder"),
    "minilm": lambda _: minilm(),
    "tiny": lambda folder: tiny(folder / "sound"),
}


class Case(NamedTuple):
    """A fault that is planted in a model, the section that finds it, and words of the finding."""

    model: str
    plant: Callable[[Path], None]
    section: Section
    words: str


CHEAP = [
    Case("tiny", planted.missing_shard, check_the_files, "is missing"),
    Case("tiny", planted.missing_tensor, check_the_files, "in no file"),
    Case("tiny", planted.doubled_tensor, check_the_files, "in several files"),
    Case("tiny", planted.cut_off, check_the_files, "cut off"),
    Case("tiny", planted.unreadable_settings, check_the_files, "generation_config.json can't be"),
    Case("tiny", planted.other_shape, check_the_files, "another shape"),
    Case("smollm2", planted.layer_count, check_the_files, "other numbers of layers"),
    Case("smollm2", planted.no_head, check_the_files, "have no head"),
    Case("smollm2", planted.other_content, check_the_files, "isn't the file that the hub has"),
    Case("smollm2", planted.wrong_end, check_the_tokenizer, "ends a turn"),
    Case("smollm2", planted.endless_turns, check_the_tokenizer, "ends no turn"),
    Case("smollm2", planted.ordinary_end, check_the_tokenizer, "Ordinary tokens end answers"),
    Case("smollm2", planted.foreign_tokenizer, check_the_tokenizer, "no embedding"),
    Case("smollm2", planted.lower_case, check_the_tokenizer, "Texts change"),
    Case("smollm2", planted.split_special, check_the_template, "special tokens that"),
    Case("coder", planted.dropped_tools, check_the_template, "drops tools"),
    Case("smollm2", planted.counted_turns, check_the_template, "doesn't begin with the turn"),
    Case("smollm2", planted.last_message_alone, check_the_template, "drops messages"),
    Case("smollm2", planted.other_opening, check_the_template, "ends otherwise"),
    Case("smollm2", planted.broken_template, check_the_template, "takes no conversation"),
    Case("smollm2", planted.clock, check_the_template, "time of day"),
    Case("minilm", planted.first_token_pooled, check_the_vectors, "pooling cls isn't"),
    Case("minilm", planted.no_pooling, check_the_vectors, "can't be followed"),
    Case("minilm", planted.unknown_module, check_the_vectors, "can't be followed"),
    Case("minilm", planted.swapped_encoder_layer, check_the_numbers, "query and key of layer 2"),
    Case("minilm", planted.doubled_encoder_norm, check_the_numbers, "layer.3.output.LayerNorm"),
    Case("tiny", planted.mean_of_a_decoder, check_the_vectors, "should be the state of the last"),
    Case("tiny", planted.random_weights, check_the_numbers, "weights are random"),
    Case("tiny", planted.not_finite, check_the_numbers, "aren't finite"),
]
SLOW = [
    Case("smollm2", planted.swapped_shapes, check_the_files, "are swapped"),
    Case("smollm2", planted.doubled_norm, check_the_numbers, "layers.9.post_attention_layernorm"),
    Case("smollm2", planted.shrunk_matrix, check_the_numbers, "layers.12.mlp.down_proj"),
    Case("smollm2", planted.doubled_first_norm, check_the_numbers, "layers.0.input_layernorm"),
    Case("smollm2", planted.wrong_base, check_the_numbers, "should be 100000"),
    Case("smollm2", planted.foreign_layer, check_the_numbers, "Layer 11 is not of this model"),
    Case("smollm2", planted.untied_head, check_the_numbers, "embeddings are the head"),
    Case("smollm2", planted.half_random, check_the_numbers, "A part of the weights is random"),
    Case("smollm2", planted.swapped_gates, check_the_numbers, "gate_proj and up_proj are swapped"),
    Case("smollm2", planted.interleaved_rows, check_the_numbers, "order of another kind"),
    Case("coder", planted.foreign_layer, check_the_numbers, "Layer 11 is not of this model"),
]


def found(case_section: Section, folder: Path) -> list[CheckFinding]:
    subject = Subject(CheckModel(str(folder), seconds=_SECONDS), folder)
    findings: list[CheckFinding] = []
    with suppress(InvalidNumbersError):
        for finding in case_section(subject):
            findings.append(finding)  # noqa: PERF402  # They are kept if the section ends early.
    return findings


def name_of(case: Case) -> str:
    return f"{case.model}-{case.plant.__name__}"


def is_named(case: Case, tmp_path: Path) -> None:
    folder = planted.linked(MODELS[case.model](tmp_path), tmp_path / "model")
    case.plant(folder)
    findings = found(case.section, folder)
    reported = [finding for finding in findings if finding.severity != "note"]
    assert any(case.words in f"{finding.what} {finding.evidence}" for finding in reported), findings
    assert all(finding.remedy for finding in reported)


@pytest.mark.parametrize("case", CHEAP, ids=name_of)
def test_a_planted_fault_is_named(case: Case, tmp_path: Path) -> None:
    is_named(case, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", SLOW, ids=name_of)
def test_a_fault_of_the_weights_is_named(case: Case, tmp_path: Path) -> None:
    is_named(case, tmp_path)


def test_consequences_of_a_template_that_drops_messages_are_not_reported(tmp_path: Path) -> None:
    folder = planted.linked(MODELS["smollm2"](tmp_path), tmp_path / "model")
    planted.last_message_written(folder)
    reported = [
        finding for finding in found(check_the_template, folder) if finding.severity != "note"
    ]
    assert [(finding.what, finding.owner) for finding in reported] == [
        ("The template drops messages.", "conversion")
    ]


@pytest.mark.parametrize("model", ["smollm2", "coder", "minilm"])
@pytest.mark.parametrize(
    "section",
    [check_the_files, check_the_tokenizer, check_the_template, check_the_parser],
    ids=lambda section: section.__name__,
)
def test_sound_files_have_no_fault(model: str, section: Section, tmp_path: Path) -> None:
    if model == "minilm" and section in (check_the_template, check_the_parser):
        pytest.skip("an encoder has no template")
    findings = found(section, MODELS[model](tmp_path))
    assert [finding for finding in findings if finding.severity != "note"] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("model", ["smollm2", "coder", "minilm"])
def test_sound_weights_have_no_fault(model: str, tmp_path: Path) -> None:
    assert found(check_the_numbers, MODELS[model](tmp_path)) == []
