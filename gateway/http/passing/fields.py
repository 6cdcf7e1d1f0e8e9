"""The fields of requests that are passed on. One of them names the model. The server must find no
other one, and nothing that leads to another one: it may serve models that the client's key doesn't
allow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import unquote_plus

import msgspec
from msgspec import Raw

from gateway.http.wire.errors import invalid

# Go's servers ignore the case of a field's name, and PHP's and Node's take brackets for a list.
_SPELLINGS: Final = re.compile(r"[\s\[]*model\s*([\[\]].*)?", re.I | re.S)

# With these, clients name other models, addresses and keys to OpenRouter, LiteLLM and others.
_OTHERS: Final = (
    *("models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "model_list"),
    *("preset", "user_config", "api_base", "base_url", "api_key", "draft_model", "adapters"),
)

# What OpenAI's and Anthropic's APIs, vLLM, llama.cpp and Ollama ask of a model. Some server may
# take any other field for an order that a key doesn't allow.
_OF_CHATS: Final = """
    add_generation_prompt add_special_tokens allowed_token_ids audio background
    background_options bad_words best_of cache_control cache_prompt cache_salt
    chat_template_kwargs compaction container context context_management continue_final_message
    conversation diagnostics dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
    dry_sequence_breakers dynatemp_exponent dynatemp_range early_stopping echo enable_thinking
    format frequency_context_size frequency_penalty function_call functions grammar
    guided_choice guided_decoding_backend guided_grammar guided_json guided_regex
    guided_whitespace_pattern ignore_eos images include include_reasoning
    include_stop_str_in_output inference_geo input instructions json_schema keep_alive
    length_penalty logit_bias logprob_token_ids logprobs max_completion_tokens max_output_tokens
    max_tokens max_tool_calls mcp_servers media_io_kwargs messages metadata min_keep min_p
    min_tokens mirostat mirostat_eta mirostat_tau mm_processor_kwargs modalities model
    moderation n n_keep n_predict n_probs num_draft_tokens options output_config
    parallel_tool_calls parse_tool_calls personality prediction presence_context_size
    presence_penalty previous_response_id priority prompt prompt_cache_key prompt_cache_options
    prompt_cache_retention prompt_logprobs raw reasoning reasoning_effort
    reasoning_format repeat_last_n repeat_penalty repetition_context_size repetition_detection
    repetition_penalty request_id response_format return_token_ids return_tokens_as_token_ids
    safety_identifier seed service_tier session_id skip_special_tokens
    spaces_between_special_tokens stop stop_sequences stop_token_ids store stream
    stream_interval stream_options structural_tag structured_outputs suffix system temperature
    text think thinking thinking_budget_tokens thinking_token_budget timings_per_token
    tool_choice tools top_k top_logprobs top_n_sigma top_p truncation typical_p usage
    use_beam_search user verbose verbosity web_search_options xtc_probability xtc_threshold
"""
_OF_VECTORS: Final = """
    dimensions documents embed_dtype embedding_type embedding_types encoding_format endianness
    input_type late_chunking max_chunks_per_doc max_tokens_per_doc normalize normalized
    prompt_name query rank_fields return_documents task top_n truncate truncate_prompt_tokens
    truncation_side use_activation
"""
_OF_SOUND: Final = """
    chunking_strategy file gender hotwords keywords known_speaker_names known_speaker_references
    lang_code language languages pitch speed stream_format streaming_interval
    timestamp_granularities vad_filter voice
"""
_OF_PICTURES: Final = """
    cfg_scale guidance_scale height image input_fidelity mask negative_prompt
    num_inference_steps output_compression output_format partial_images quality size steps
    strength style width
"""
_KNOWN: Final = frozenset(" ".join((_OF_CHATS, _OF_VECTORS, _OF_SOUND, _OF_PICTURES)).split())
_KNOWN_PARAMETERS: Final = ("", "api-version", "beta")


def unknown(names: Iterable[str], further: Collection[str]) -> set[str]:
    """The fields that pass for operators alone. `further` ones pass for everybody."""
    return {*names} - _KNOWN - {*further}


def set_model(fields: dict[str, Raw], model: str) -> None:
    """Name the model in a JSON object. Raises: Refusal: the object names another one."""
    for name in fields:
        if name != "model" and may_mean_model(name):
            raise invalid(f"{name[:40]!r} may mean the model: send model alone.", "model")
        check_other(name)
    fields["model"] = Raw(msgspec.json.encode(model))


def may_mean_model(name: str) -> bool:
    """Whether some server takes a field of this name for `model`."""
    return _SPELLINGS.fullmatch(name) is not None


def check_other(field: str) -> None:
    """Raises: Refusal: the field leads to other models than `model`."""
    if field.lower().partition("[")[0] in _OTHERS:
        raise invalid(f"{field[:40]} may lead to another model: send model alone.", field[:40])


def check_query(query: bytes, *, operator: bool) -> None:
    """Raises: Refusal: the query string names a model, or has what passes for operators alone."""
    for parameter in re.split("[&;]", query.decode("latin-1")):
        name = unquote_plus(parameter.partition("=")[0])
        check_other(name)
        if may_mean_model(name):
            raise invalid("The address has a parameter model: name the model in the body.", "model")
        if not operator and name not in _KNOWN_PARAMETERS:
            raise invalid(f"The parameter {name[:40]!r} isn't passed on: leave it out.", "query")
