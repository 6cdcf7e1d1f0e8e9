"""The parameters of OpenAI's and Ollama's bodies, and their fate: done, refused or harmless.

A parameter is refused by name if it would change the answer and is not supported. A refused
parameter may still have a neutral value, since clients send defaults. A harmless parameter is
ignored, as is a field that no API knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from gateway.http.wire.bodies import ABSENT, NOT_GIVEN
from gateway.http.wire.errors import invalid

Place: TypeAlias = Literal[
    "chat",
    "completions",
    "responses",
    "stream_options",
    "message",
    "part",
    "embeddings",
    "rerank",
    "generate",
    "options",
]
Fate: TypeAlias = Literal["done", "refused", "harmless"]

# The names of the places in the documentation.
PLACES: Final[dict[Place, str]] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "stream_options": "stream_options",
    "message": "messages[]",
    "part": "messages[].content[]",
    "embeddings": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "generate": "/api/generate",
    "options": "options",
}
_BODIES: Final[tuple[Place, ...]] = ("chat", "completions")


class Parameter(Struct, frozen=True):
    """A parameter and its fate. `neutral` has the values that a refused parameter may have besides
    null, since these values change nothing. `note` is advice to the client, or says why the
    parameter is harmless.
    """

    name: str
    fate: Fate
    places: tuple[Place, ...] = _BODIES
    neutral: tuple[object, ...] = ()
    note: str = ""


def _done(*names: str, places: tuple[Place, ...] = _BODIES) -> Iterator[Parameter]:
    for name in names:
        yield Parameter(name, "done", places)


def _refused(
    name: str, *neutral: object, places: tuple[Place, ...] = _BODIES, note: str = ""
) -> Parameter:
    return Parameter(name, "refused", places, neutral, note)


def _harmless(note: str, *names: str, places: tuple[Place, ...] = _BODIES) -> Iterator[Parameter]:
    for name in names:
        yield Parameter(name, "harmless", places, note=note)


_CHAT: Final[tuple[Place, ...]] = ("chat",)
_COMPLETIONS: Final[tuple[Place, ...]] = ("completions",)
_MESSAGE: Final[tuple[Place, ...]] = ("message",)
_PART: Final[tuple[Place, ...]] = ("part",)

_RESPONSES: Final[tuple[Place, ...]] = ("responses",)
_EMBEDDINGS: Final[tuple[Place, ...]] = ("embeddings",)
_RERANK: Final[tuple[Place, ...]] = ("rerank",)
_VECTORS: Final[tuple[Place, ...]] = ("embeddings", "rerank")
_GENERATE: Final[tuple[Place, ...]] = ("generate",)
_OPTIONS: Final[tuple[Place, ...]] = ("options",)

PARAMETERS: Final[tuple[Parameter, ...]] = (
    *_done("model", "stream", "stream_options", "max_tokens", "max_completion_tokens"),
    *_done("temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos"),
    *_done("repetition_penalty", "repetition_context_size", "repetition_stop"),
    *_done("frequency_penalty", "presence_penalty", "logit_bias"),
    *_done("xtc_probability", "xtc_threshold", "min_tokens", "stop_token_ids"),
    *_done("include_stop_str_in_output", "bad_words", "allowed_token_ids"),
    *_done("priority", "keep_alive", "cache_salt"),
    *_done("n", "response_format", "structured_outputs"),
    *_done("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *_done("messages", places=_CHAT),
    *_done("tools", "tool_choice", "parallel_tool_calls", places=_CHAT),
    *_done("reasoning_effort", "enable_thinking", "chat_template_kwargs", places=_CHAT),
    *_done("verbosity", "prediction", places=_CHAT),
    *_done("thinking_token_budget", "include_reasoning", places=_CHAT),
    *_done("logprobs"),
    *_done("top_logprobs", places=_CHAT),
    *_done("best_of", "echo", "suffix", places=_COMPLETIONS),
    *_done("prompt", places=_COMPLETIONS),
    _refused("prompt", places=_CHAT, note="send it to /v1/completions"),
    _refused("messages", places=_COMPLETIONS, note="send them to /v1/chat/completions"),
    # Parameters of OpenAI
    _refused("best_of", 1, places=_CHAT),
    _refused("top_logprobs", 0, -1, places=_COMPLETIONS, note="send logprobs"),
    _refused("tools", [], places=_COMPLETIONS),
    _refused("tool_choice", "none", "auto", places=_COMPLETIONS),
    _refused("parallel_tool_calls", True, places=_COMPLETIONS),
    _refused("functions", []),
    _refused("function_call", "none", "auto"),
    _refused("modalities", ["text"]),
    _refused("audio"),
    _refused("web_search_options"),
    _refused("moderation"),
    _refused("reasoning_effort", places=_COMPLETIONS),
    _refused("verbosity", "medium", places=_COMPLETIONS),
    _refused("service_tier", "auto", "default", note="send priority"),
    _refused("store", False, places=_CHAT, note="send the header X-Mailbox: keep"),
    _refused("store", False, places=_COMPLETIONS),
    _refused("echo", False, places=_CHAT),
    _refused("suffix", "", places=_CHAT),
    *_harmless("a label for OpenAI's records", "user", "safety_identifier", "metadata"),
    *_harmless(
        "it only says how prompts are cached",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    ),
    *_harmless("it only hastens answers", "prediction", places=_COMPLETIONS),
    # Parameters of mlx_lm.server
    _refused("chat_template_kwargs", {}, places=_COMPLETIONS),
    _refused("enable_thinking", places=_COMPLETIONS),
    _refused("role_mapping", {}),
    _refused("adapters", note="give the adapted model an id of its own"),
    _refused("draft_model", "default_model"),
    *_harmless(
        "penalties count the whole answer, as OpenAI's do",
        "presence_context_size",
        "frequency_context_size",
    ),
    *_harmless("it belongs to draft_model", "num_draft_tokens"),
    # Parameters of vLLM
    _refused("skip_special_tokens", False),
    _refused("logits_processors", []),
    _refused("watermarking", False),
    _refused("use_beam_search", False),
    _refused("repetition_detection"),
    _refused("thinking_token_budget", -1, places=_COMPLETIONS),
    _refused("include_reasoning", True, places=_COMPLETIONS),
    _refused("prompt_logprobs"),
    _refused("logprob_token_ids", []),
    _refused("truncate_prompt_tokens", note="shorten the prompt"),
    _refused("return_token_ids", False),
    _refused("return_prompt_text", False),
    _refused("return_weight_versions", False),
    _refused("add_special_tokens", False, places=_CHAT),
    _refused("add_special_tokens", True, places=_COMPLETIONS),
    *_done("add_generation_prompt", "continue_final_message", places=_CHAT),
    _refused("add_generation_prompt", True, places=_COMPLETIONS),
    _refused("continue_final_message", False, places=_COMPLETIONS),
    _refused("documents", [], note="write them into a message"),
    _refused("chat_template"),
    _refused("prompt_embeds"),
    _refused("structural_tag"),
    _refused("kv_transfer_params", {}),
    _refused("ec_transfer_params", {}),
    _refused("vllm_xargs", {}),
    *_harmless("it belongs to use_beam_search", "length_penalty", "early_stopping"),
    *_harmless("it belongs to truncate_prompt_tokens", "truncation_side"),
    *_harmless("it belongs to logprobs", "return_tokens_as_token_ids"),
    *_harmless(
        "it belongs to guided_json and its like",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
    ),
    *_harmless(
        "it belongs to images and sounds", "media_io_kwargs", "mm_processor_kwargs", places=_CHAT
    ),
    *_harmless("only tokenizers that aren't used here know it", "spaces_between_special_tokens"),
    *_harmless("a label; the header X-Request-Id names a request", "request_id", "session_id"),
    *_harmless("how the pieces of a stream are cut is free", "stream_interval"),
    *_harmless(
        "only vLLM's other paths know it",
        "return_token_offsets",
        "return_mm_kwargs",
        "routed_experts_prompt_start",
    ),
    # Within stream_options
    *_done("include_usage", places=("stream_options",)),
    _refused("continuous_usage_stats", False, places=("stream_options",)),
    *_harmless(
        "padding against listeners on the way", "include_obfuscation", places=("stream_options",)
    ),
    # Within a message
    *_done("role", "content", "name", "refusal", places=_MESSAGE),
    *_done("reasoning", "reasoning_content", places=_MESSAGE),
    *_done("tool_calls", "tool_call_id", places=_MESSAGE),
    _refused("function_call", places=_MESSAGE),
    _refused("audio", places=_MESSAGE),
    _refused("tools", [], places=_MESSAGE),
    # Within a part of a message's content
    *_done("type", "text", "refusal", "image_url", "thinking", "reasoning", places=_PART),
    _refused("image_embeds", places=_PART),
    _refused("input_audio", places=_PART),
    _refused("audio_url", places=_PART),
    _refused("video_url", places=_PART),
    _refused("file", places=_PART),
    *_harmless("the model's own files say how closely it looks", "detail", places=_PART),
    *_harmless("it only says how prompts are cached", "prompt_cache_breakpoint", places=_PART),
    # Parameters of responses: OpenAI's, and further parameters of chat
    *_done("model", "input", "instructions", "previous_response_id", places=_RESPONSES),
    *_done("background", "store", "stream", "include", "metadata", places=_RESPONSES),
    *_done("tools", "tool_choice", "parallel_tool_calls", places=_RESPONSES),
    *_done("text", "reasoning", "max_output_tokens", "truncation", places=_RESPONSES),
    *_done("temperature", "top_p", "top_logprobs", "top_k", "min_p", places=_RESPONSES),
    *_done("seed", "stop", "ignore_eos", "repetition_penalty", places=_RESPONSES),
    *_done("repetition_context_size", "frequency_penalty", places=_RESPONSES),
    *_done("repetition_stop", places=_RESPONSES),
    *_done("presence_penalty", "logit_bias", "priority", "keep_alive", places=_RESPONSES),
    *_done("cache_salt", "enable_thinking", "chat_template_kwargs", places=_RESPONSES),
    _refused("messages", places=_RESPONSES, note="send input"),
    _refused("max_tokens", places=_RESPONSES, note="send max_output_tokens"),
    _refused("n", 1, places=_RESPONSES),
    _refused("response_format", places=_RESPONSES, note="send text.format"),
    _refused("conversation", places=_RESPONSES, note="send previous_response_id"),
    _refused("prompt", places=_RESPONSES, note="send input"),
    *_harmless(
        "nothing is summed up unless a client asks for it: POST /v1/responses/compact",
        "context_management",
        places=_RESPONSES,
    ),
    _refused("access_programs", {}, places=_RESPONSES),
    _refused(
        "background_options",
        {},
        {"completion_window": "soonest"},
        places=_RESPONSES,
        note="send X-Deadline-S",
    ),
    _refused("moderation", places=_RESPONSES),
    _refused("service_tier", "auto", "default", places=_RESPONSES, note="send priority"),
    *_harmless("it counts tools that run at OpenAI", "max_tool_calls", places=_RESPONSES),
    *_harmless("padding against listeners on the way", "stream_options", places=_RESPONSES),
    *_harmless("pictures are looked at as they are", "image", places=_RESPONSES),
    *_harmless("a label for OpenAI's records", "user", "safety_identifier", places=_RESPONSES),
    *_harmless(
        "it only says how prompts are cached",
        "prompt_cache_key",
        "prompt_cache_retention",
        places=_RESPONSES,
    ),
    Parameter(
        "prompt_cache_options",
        "done",
        _RESPONSES,
        (),
        "only `prewarm` and `comparison_response_id`",
    ),
    # Parameters of embeddings and rerank: OpenAI's, vLLM's, Jina's and Cohere's
    *_done("model", "truncate_prompt_tokens", "priority", "keep_alive", places=_VECTORS),
    *_done("input", "dimensions", "encoding_format", places=_EMBEDDINGS),
    *_done("input_type", "prompt_name", places=_EMBEDDINGS),
    *_done("query", "documents", "top_n", "return_documents", places=_RERANK),
    _refused("messages", places=_EMBEDDINGS, note="send input"),
    _refused("add_special_tokens", True, places=_VECTORS),
    _refused("use_activation", True, places=_VECTORS),
    _refused("truncation_side", "right", places=_VECTORS),
    _refused("truncate", "NONE", places=_VECTORS, note="send truncate_prompt_tokens"),
    _refused("normalize", True, places=_EMBEDDINGS),
    _refused("normalized", True, places=_EMBEDDINGS),
    _refused("embed_dtype", "float32", places=_EMBEDDINGS),
    _refused("endianness", "native", "little", places=_EMBEDDINGS),
    _refused("embedding_type", "float", places=_EMBEDDINGS, note="send encoding_format"),
    _refused("embedding_types", ["float"], places=_EMBEDDINGS, note="send encoding_format"),
    _refused("late_chunking", False, places=_EMBEDDINGS),
    _refused("task", places=_EMBEDDINGS, note="send prompt_name"),
    _refused("max_tokens_per_doc", places=_RERANK, note="send truncate_prompt_tokens"),
    _refused("max_chunks_per_doc", places=_RERANK),
    _refused("rank_fields", [], places=_RERANK),
    *_harmless("a label for OpenAI's records", "user", places=_VECTORS),
    *_harmless("a label; the header X-Request-Id names a request", "request_id", places=_VECTORS),
    # Parameters of Ollama
    *_done("model", "stream", "options", "format", "think", "keep_alive", places=_GENERATE),
    *_done("prompt", "suffix", "system", "raw", "images", places=_GENERATE),
    *_done("logprobs", "top_logprobs", places=_GENERATE),
    _refused("context", [], places=_GENERATE, note="send the messages to /api/chat"),
    _refused("template", "", places=_GENERATE),
    _refused("width", 0, places=_GENERATE),
    _refused("height", 0, places=_GENERATE),
    _refused("steps", 0, places=_GENERATE),
    # Within Ollama's options
    *_done("temperature", "top_p", "top_k", "min_p", "seed", "num_predict", places=_OPTIONS),
    *_done("stop", "repeat_penalty", "repeat_last_n", places=_OPTIONS),
    *_done("presence_penalty", "frequency_penalty", "repetition_stop", places=_OPTIONS),
    _refused("mirostat", 0, places=_OPTIONS),
    _refused("tfs_z", 0, 1, places=_OPTIONS),
    _refused("typical_p", 0, 1, places=_OPTIONS),
    *_harmless("they belong to mirostat", "mirostat_tau", "mirostat_eta", places=_OPTIONS),
    *_harmless(
        "`context_tokens` of the configuration bounds it, and nothing is cut off",
        "num_ctx",
        "num_keep",
        places=_OPTIONS,
    ),
    *_harmless(
        "how a model is loaded is the configuration's",
        "numa",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "low_vram",
        "f16_kv",
        "logits_all",
        "vocab_only",
        "use_mmap",
        "use_mlock",
        "embedding_only",
        "num_thread",
        places=_OPTIONS,
    ),
    *_harmless("llama.cpp's own, and gone there", "penalize_newline", places=_OPTIONS),
)


def parameters_at(place: Place, fate: Fate) -> tuple[Parameter, ...]:
    """The parameters with this fate at a place."""
    return tuple(
        parameter
        for parameter in PARAMETERS
        if place in parameter.places and parameter.fate == fate
    )


def printed() -> Iterator[str]:
    """The lines of the table in docs/parameters.md."""
    yield "| in | parameter | | neutral values, or why |"
    yield "| --- | --- | --- | --- |"
    for parameter in PARAMETERS:
        place = ", ".join(f"`{PLACES[place]}`" for place in parameter.places)
        values = ", ".join(
            f"`{msgspec.json.encode(value).decode()}`" for value in parameter.neutral
        )
        words = "; ".join(filter(None, (values, parameter.note)))
        yield f"| {place} | `{parameter.name}` | {parameter.fate} | {words} |"


if __name__ == "__main__":
    print("\n".join(printed()))


_LONGEST_NEUTRAL: Final = 100

_REFUSED: Final = {place: parameters_at(place, "refused") for place in PLACES}
Kind = TypeVar("Kind", bound=Struct)


def refusing(place: Place) -> Callable[[type[Kind]], type[Kind]]:
    """A decorator that adds fields to the type: the parameters that are refused at `place`, for
    `check_supported`.
    """

    def extend(kind: type[Kind]) -> type[Kind]:
        extended: type[Any] = msgspec.defstruct(
            kind.__name__,
            # The values stay raw text, since a refused value may be megabytes of lists.
            [(parameter.name, _kind(parameter), ABSENT) for parameter in _REFUSED[place]],
            bases=(kind,),
            module=kind.__module__,
            namespace={"__doc__": kind.__doc__},
            kw_only=True,
        )
        return extended

    return extend


_JSON_TYPES: Final = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
}


def _kind(parameter: Parameter) -> Any:
    """The type of a refused field, with a schema that allows neutral values."""
    about = f"Not supported; {parameter.note}." if parameter.note else "Not supported."
    values = [None, *parameter.neutral]
    # Python's cache of types takes 1 for True: the types tell the two apart.
    types = sorted({_JSON_TYPES[type(value)] for value in values})
    taken = {"type": types, "enum": values, "description": about}
    return Annotated[Raw, Meta(extra_json_schema=taken)]


def check_supported(decoded: Struct, place: Place, path: str = "") -> None:
    """`refusing(place)` made the type of `decoded`. `path` is the prefix of its fields in the body,
    such as `options.`.

    Raises:
        Refusal: a parameter that is refused at `place` has a value that is not neutral.
    """
    for parameter in _REFUSED[place]:
        text: Raw = getattr(decoded, parameter.name)
        if text is not NOT_GIVEN and not _neutral(parameter, text):
            name = path + parameter.name
            advice = f", or {parameter.note}" if parameter.note else ""
            raise invalid(f"{name} is not supported: leave it out{advice}.", name)


def _neutral(parameter: Parameter, text: Raw) -> bool:
    if len(text) > _LONGEST_NEUTRAL:
        return False
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return value is None or any(_same(value, neutral) for neutral in parameter.neutral)


def _same(value: object, neutral: object) -> bool:
    """Whether two values are equal as JSON, where 0 is not false; in Python 0 == False."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return value == neutral
