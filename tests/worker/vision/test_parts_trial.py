"""A model whose texts come out otherwise in parts is refused at the load, or its status says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx_vlm", reason="the extra vision is not installed")

from tests.support.vlm_architectures import TINY_VLM
from tests.support.vlm_folders import write_vlm
from worker.system.errors import ModelError
from worker.vision.language import LanguagePart, load_language
from worker.vision.parts_trial import why_breaks_change
from worker.vision.trial import why_alone


def _language(folder: Path, kind: str, **changes: Any) -> LanguagePart:
    config = {**TINY_VLM[kind], "model_type": kind, **changes}
    return load_language(write_vlm(folder / kind, config))[0]


@pytest.mark.parametrize("kind", ["paligemma", "falcon_perception", "hy_v4"])
def test_a_model_whose_tokens_depend_on_later_ones_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"on those behind them .* Choose another model"):
        why_alone(_language(tmp_path, kind), looks=False)


def test_a_model_that_fails_on_long_texts_alone_is_refused(tmp_path: Path) -> None:
    language = _language(tmp_path, "hy_v4", index_topk=2048)
    with pytest.raises(ModelError, match="on those behind them"):
        why_breaks_change(language)
    assert {most for _, most in language.choices} == {2048}


@pytest.mark.parametrize("kind", ["afm7", "deepseek_v41", "z1t"])
def test_a_model_that_would_fail_in_an_answer_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"can't compute texts in parts \(.*Choose another model"):
        why_alone(_language(tmp_path, kind), looks=False)


@pytest.mark.parametrize("kind", ["deepseek_v4", "unlimited_ocr"])
def test_a_model_whose_answers_change_at_a_break_runs_alone_and_says_so(
    kind: str, tmp_path: Path
) -> None:
    reason = why_alone(_language(tmp_path, kind), looks=False)
    assert "above all after a break" in (reason or "")


@pytest.mark.parametrize("kind", ["glm5_next", "longcat_flash_sparse", "zaya1_vl", "lfm2_vl"])
def test_windows_choices_and_states_change_nothing(kind: str, tmp_path: Path) -> None:
    assert why_breaks_change(_language(tmp_path, kind)) is None
