"""Writes the small models beside this file, and what transformers makes of some tokens with them.

The suite doesn't run it: it takes torch 2.13.0 and transformers 5.23.0, in an environment of its
own. `python make_references.py` overwrites `models/`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import save_file

FOLDER = Path(__file__).with_name("models")
SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
}
MODERN = {
    **SIZES,
    "pad_token_id": 0,
    "local_attention": 8,
    "global_attn_every_n_layers": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
DECODER = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}
GEMMA = {
    **DECODER,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 8,
    "use_bidirectional_attention": True,
}
BIDIRECTIONAL = {**DECODER, "is_causal": False}
MINISTRAL = {
    **BIDIRECTIONAL,
    "sliding_window": None,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "llama_4_scaling_beta": 0.5,
        "original_max_position_embeddings": 4,
    },
}
LLAMA = {
    **BIDIRECTIONAL,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}
EMBEDDING_GEMMA = {
    **DECODER,
    "num_attention_heads": 2,
    "sliding_window": 3,
    "hidden_size_per_layer_input": 8,
    "embedding_dim": 16,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "global_head_dim": 16,
}
LFM2 = {
    **DECODER,
    "block_ff_dim": 24,
    "block_multiple_of": 8,
    "layer_types": ["conv", "full_attention", "conv"],
}

MODELS = {
    "bert": (hf.BertModel, hf.BertConfig(**SIZES)),
    "bert_ranker": (hf.BertForSequenceClassification, hf.BertConfig(**SIZES, num_labels=1)),
    "roberta_ranker": (
        hf.XLMRobertaForSequenceClassification,
        hf.XLMRobertaConfig(**SIZES, num_labels=1, pad_token_id=1, type_vocab_size=1),
    ),
    "modernbert": (hf.ModernBertModel, hf.ModernBertConfig(**MODERN)),
    "modernbert_ranker": (
        hf.ModernBertForSequenceClassification,
        hf.ModernBertConfig(**MODERN, num_labels=1, classifier_pooling="mean"),
    ),
    "gemma3": (hf.Gemma3TextModel, hf.Gemma3TextConfig(**GEMMA)),
    "qwen3": (hf.Qwen3Model, hf.Qwen3Config(**DECODER)),
    "llama_bidirec": (hf.LlamaModel, hf.LlamaConfig(**LLAMA)),
    "ministral3": (hf.Ministral3Model, hf.Ministral3Config(**MINISTRAL)),
    "embedding_gemma2": (
        hf.EmbeddingGemma2TextModel,
        hf.EmbeddingGemma2TextConfig(**EMBEDDING_GEMMA),
    ),
    "lfm2": (hf.Lfm2Model, hf.Lfm2Config(**LFM2)),
}
# Models whose queries are expanded.
EXPANDED = ("bert", "lfm2")


def main() -> None:
    for name, (kind, config) in MODELS.items():
        torch.manual_seed(7)
        model = kind(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # What libraries begin with depends on the order of texts hardly at all.
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.4)
                else:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        prefix = "language_model." if name == "embedding_gemma2" else ""
        weights = {
            f"{prefix}{key}": value.contiguous() for key, value in model.state_dict().items()
        }
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        settings = {**config.to_dict(), "architectures": [kind.__name__]}
        if name == "gemma3":
            # As published files have them; transformers halves the window as it reads them.
            settings |= {"sliding_window": 8, "sliding_window_pattern": 2}
        if name == "llama_bidirec":
            settings["model_type"] = name
        if name == "embedding_gemma2":
            settings = {"model_type": name, "text_config": settings}
        (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
        if name == "qwen3":
            modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
            (folder / "modules.json").write_text(json.dumps(modules) + "\n")
        texts = json.loads((FOLDER / "texts.json").read_text())
        expected = [_outputs(model, text["tokens"], text["types"]) for text in texts]
        (folder / "expected.json").write_text(json.dumps(expected) + "\n")
        if name in EXPANDED:
            expected = [_expanded(model, text["tokens"]) for text in texts]
            (folder / "expanded.json").write_text(json.dumps(expected) + "\n")


def _outputs(model: torch.nn.Module, tokens: list[int], types: list[int]) -> list[float]:
    """A text's states one after another, or its score."""
    inputs = {"input_ids": torch.tensor([tokens])}
    if isinstance(model, hf.BertForSequenceClassification):
        inputs["token_type_ids"] = torch.tensor([types])
    with torch.no_grad():
        outputs = model(**inputs)
    values = outputs.logits if "logits" in outputs else outputs.last_hidden_state
    return [round(item, 6) for item in values.flatten().tolist()]


def _expanded(model: torch.nn.Module, tokens: list[int]) -> list[float]:
    """A text's states with four tokens more that no token sees."""
    # In a batch of one, LFM2 lets its convolutions see these.
    rows = torch.tensor([tokens + [4] * 4] * 2)
    mask = torch.tensor([[1] * len(tokens) + [0] * 4] * 2)
    with torch.no_grad():
        states = model(input_ids=rows, attention_mask=mask).last_hidden_state
    return [round(item, 6) for item in states[0].flatten().tolist()]


if __name__ == "__main__":
    main()
