"""What is said of well-known models, 4-bit, on Macs of several sizes.

The configurations are the published ones as far as sizes go, with what they leave out left out. The
expected numbers are worked out here from layers, heads and sizes, and not by the code in question.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec import Struct

from gateway.memory.estimate import Estimate, EstimateTerms, estimated
from gateway.memory.fitting import fit
from gateway.memory.weights import Weights
from gateway.system.memory import BackEnd

GIB: Final = 2**30
HEADROOM: Final = 2_000_000_000
# Recommended working sets of Macs with 32, 64, 128 and 512 GB.
WORKING_SETS: Final = (21, 48, 96, 384)
CONTEXT: Final = 32_768
ORDINARY: Final = 4_096
PROCESS: Final = 300_000_000
HALF: Final = 2
CHUNK: Final = 2_048
LENGTHS: Final = (2_000, 8_000, 32_000)
# Activations of a chunk, and what MLX keeps: less than so much for all of these.
ACTIVATIONS: Final = 1_000_000_000
MARGIN: Final = 1.15


class Case(Struct, frozen=True):
    """`full` layers keep `token_bytes` of every token, `windowed` ones of `window` tokens, and
    `state_bytes` are kept at once. Attention writes out `score_bytes` for each token that a chunk
    sees.
    """

    config: dict[str, Any]
    weight_bytes: int
    full: int
    token_bytes: int
    windowed: int = 0
    window: int = 0
    state_layers: int = 0
    state_bytes: int = 0
    score_bytes: int = 0

    def row_bytes(self, tokens: int) -> int:
        stored = (tokens + 255) // 256 * 256
        return (
            self.full * stored * self.token_bytes
            + self.windowed * min(stored, self.window) * self.token_bytes
            + self.state_layers * self.state_bytes
        )

    @property
    def peak(self) -> float:
        """Four layers exist three times while they grow."""
        layers = self.full + self.windowed + self.state_layers
        return (layers - 4 + 4 * 3) / layers


CASES: Final = {
    "Qwen3-30B-A3B": Case(
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "sliding_window": None,
        },
        weight_bytes=17_200_000_000,
        full=48,
        token_bytes=2 * 4 * 128 * HALF,
    ),
    "gpt-oss-20b": Case(
        {
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 12,
            "max_position_embeddings": 131072,
        },
        weight_bytes=11_200_000_000,
        full=12,
        token_bytes=2 * 8 * 64 * HALF,
        windowed=12,
        window=128,
    ),
    "Llama-3.3-70B": Case(
        {
            "model_type": "llama",
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
        },
        weight_bytes=39_700_000_000,
        full=80,
        token_bytes=2 * 8 * 128 * HALF,
    ),
    "DeepSeek-V3": Case(
        {
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "kv_lora_rank": 512,
            "q_lora_rank": 1536,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "max_position_embeddings": 163840,
        },
        weight_bytes=377_500_000_000,
        full=61,
        # A latent and the positions' part, once for all heads.
        token_bytes=(512 + 64) * HALF,
        # Scores of positions, and keys and values of all heads, made of the latents.
        score_bytes=128 * CHUNK * HALF + 128 * (128 + 128) * HALF,
    ),
    "Qwen3-Next-80B": Case(
        {
            "model_type": "qwen3_next",
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "moe_intermediate_size": 512,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 48,
            "full_attention_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_value_heads": 32,
            "linear_num_key_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "max_position_embeddings": 262144,
        },
        weight_bytes=44_800_000_000,
        full=12,
        token_bytes=2 * 2 * 256 * HALF,
        state_layers=36,
        # A matrix for each head in single precision, and three inputs of the convolution.
        state_bytes=32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * HALF,
        score_bytes=16 * CHUNK * HALF,
    ),
    "gemma-3-12b": Case(
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 3840,
                "intermediate_size": 15360,
                "num_hidden_layers": 48,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "sliding_window": 1024,
            },
        },
        weight_bytes=8_000_000_000,
        full=8,
        token_bytes=2 * 8 * 256 * HALF,
        windowed=40,
        window=1024,
        score_bytes=16 * CHUNK * HALF,
    ),
}


def _estimated(case: Case) -> Estimate:
    weights = Weights(case.weight_bytes, HALF)
    terms = EstimateTerms(CONTEXT, ORDINARY, PROCESS, None, BackEnd.METAL)
    return estimated(case.config, weights, terms, "config.json")


def _needed_bytes(case: Case, rows: int, tokens: int, activations: int) -> float:
    """The process, the weights, and `rows` sequences while they grow and one is computed."""
    # A window is cut back after the prompt only.
    beyond = case.windowed * CHUNK * case.token_bytes if tokens > case.window + CHUNK else 0
    moving = (
        rows * case.row_bytes(tokens) * case.peak + case.score_bytes * tokens + beyond + activations
    )
    return PROCESS + case.weight_bytes + MARGIN * moving


def _rows(case: Case, budget: int, tokens: int, activations: int) -> int:
    rows = 0
    while _needed_bytes(case, rows + 1, tokens, activations) <= budget:
        rows += 1
    return rows


@pytest.mark.parametrize("working_set", WORKING_SETS)
@pytest.mark.parametrize("name", CASES)
class TestTable:
    def test_nothing_that_fits_is_refused(self, name: str, working_set: int) -> None:
        case, budget = CASES[name], working_set * GIB - HEADROOM
        found = fit(_estimated(case), budget)
        needed = {
            tokens: _needed_bytes(case, 1, tokens, ACTIVATIONS) for tokens in (CONTEXT, ORDINARY)
        }
        whole = found.fits and found.context_tokens == CONTEXT
        assert whole or needed[CONTEXT] > budget
        ordinary = found.fits and found.context_tokens >= ORDINARY
        assert ordinary or needed[ORDINARY] > budget
        assert not found.fits or _needed_bytes(case, 1, 2_048, 0) <= budget

    def test_the_context_is_the_longest_that_has_room(self, name: str, working_set: int) -> None:
        case, budget = CASES[name], working_set * GIB - HEADROOM
        found = fit(_estimated(case), budget)
        fits = _needed_bytes(case, 1, found.context_tokens, 0) <= budget
        assert fits or not found.fits
        has_room = _needed_bytes(case, 1, found.context_tokens + 256, ACTIVATIONS) <= budget
        assert not (found.fits and found.is_cut and has_room)

    @pytest.mark.parametrize("tokens", LENGTHS)
    def test_rows_are_what_the_free_budget_allows(
        self, name: str, working_set: int, tokens: int
    ) -> None:
        case, budget = CASES[name], working_set * GIB - HEADROOM
        rows = _estimated(case).rows(budget, tokens)
        assert _rows(case, budget, tokens, ACTIVATIONS) <= rows <= _rows(case, budget, tokens, 0)


# Working set in GiB: the context in force (0: refused), rows at 2,000, 8,000 and 32,000 tokens.
TABLE: Final[dict[str, dict[int, tuple[int, int, int, int]]]] = {
    "Qwen3-30B-A3B": {
        21: (22016, 10, 2, 0),
        48: (32768, 118, 29, 7),
        96: (32768, 308, 77, 19),
        384: (32768, 1453, 363, 93),
    },
    "gpt-oss-20b": {
        21: (32768, 106, 27, 7),
        48: (32768, 460, 120, 31),
        96: (32768, 1089, 284, 73),
        384: (32768, 4860, 1271, 329),
    },
    "Llama-3.3-70B": {
        21: (0, 0, 0, 0),
        48: (21504, 10, 2, 0),
        96: (32768, 71, 17, 4),
        384: (32768, 435, 108, 27),
    },
    "DeepSeek-V3": {
        21: (0, 0, 0, 0),
        48: (0, 0, 0, 0),
        96: (0, 0, 0, 0),
        384: (32768, 164, 35, 3),
    },
    "Qwen3-Next-80B": {
        21: (0, 0, 0, 0),
        48: (32768, 24, 9, 1),
        96: (32768, 325, 147, 46),
        384: (32768, 2131, 975, 312),
    },
    "gemma-3-12b": {
        21: (32768, 17, 9, 2),
        48: (32768, 63, 33, 11),
        96: (32768, 145, 77, 27),
        384: (32768, 635, 342, 122),
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers(name: str) -> None:
    found = {}
    for working_set in WORKING_SETS:
        estimate, budget = _estimated(CASES[name]), working_set * GIB - HEADROOM
        size = fit(estimate, budget)
        context = size.context_tokens if size.fits else 0
        found[working_set] = (context, *(estimate.rows(budget, length) for length in LENGTHS))
    assert found == TABLE[name]


def test_cache_of_a_token_as_published() -> None:
    """96 KiB of Qwen3-30B-A3B, 320 KiB of Llama-3.3-70B, 68.6 KiB of DeepSeek-V3."""
    names = ("Qwen3-30B-A3B", "Llama-3.3-70B", "DeepSeek-V3")
    sizes = [_estimated(CASES[name]).shape.full_token_bytes for name in names]
    assert sizes == [96 * 1024, 320 * 1024, 70_272]
