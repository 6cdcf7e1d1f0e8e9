"""`options`: how Ollama's clients say how to choose the next token."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from gateway.config.model import Model
from gateway.http.sampling import GenerationBody, Penalty, Probability, Stop
from gateway.http.supported import check_supported, refusing

_LARGEST: Final = (1 << 31) - 1
_MOST_SEED: Final = (1 << 63) - 1

# Clients write whole numbers as 40.0, too.
Count = Annotated[float, Meta(ge=-2, le=_LARGEST, multiple_of=1)]


@refusing("options")
class Options(Struct, kw_only=True):
    """What is done of them; the table of parameters has the rest."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Probability | None = None
    top_k: Count | None = None
    min_p: Probability | None = None
    seed: Annotated[int, Meta(ge=-_MOST_SEED, le=_MOST_SEED)] | None = None
    num_predict: Annotated[float, Meta(ge=-2, multiple_of=1)] | None = None
    stop: Stop = None
    repeat_penalty: Annotated[float, Meta(ge=0, le=10)] | None = None
    repeat_last_n: Count | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


def generation(
    options: Options | None, model: Model, keep_alive: float | str | None
) -> GenerationBody:
    """The same in the words of the other APIs.

    Raises:
        Refusal: something in it isn't done here.
    """
    asked = options or Options()
    check_supported(asked, "options", "options.")
    # 0 looks back at nothing, and -1 at all of the context.
    looks_back = None if asked.repeat_last_n is None else int(asked.repeat_last_n)
    if looks_back is not None and looks_back < 0:
        looks_back = model.settings.context_tokens
    return GenerationBody(
        model=model.id,
        # Negative numbers, and 0, are Ollama's "no limit".
        max_tokens=max(0, int(asked.num_predict or 0)) or None,
        temperature=asked.temperature,
        # Those that Ollama takes for "off".
        top_p=asked.top_p or None,
        top_k=None if asked.top_k is None else max(0, int(asked.top_k)),
        min_p=asked.min_p,
        repetition_penalty=None if looks_back == 0 else asked.repeat_penalty,
        repetition_context_size=looks_back or None,
        stop=asked.stop,
        seed=asked.seed,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        keep_alive=keep_alive,
    )
