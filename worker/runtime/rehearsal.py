"""What tokenizers and chat templates do once is done in the load: compiling a template takes longer
than a short prompt.
"""

from __future__ import annotations

import logging
from typing import Final

from protocol.prompts import ChatMessage, ChatPrompt, Prompt, TextPrompt
from protocol.requests import Generate, Sampling
from worker.engines.context import Context
from worker.load.loading import LoadedModel
from worker.prompt_cache.path import Paths
from worker.runtime.prompts import Prepared, prepare

logger = logging.getLogger("worker")

_TEXT: Final = "Good morning."
_PROMPTS: Final[tuple[Prompt, ...]] = (
    TextPrompt(_TEXT),
    ChatPrompt((ChatMessage("system", _TEXT), ChatMessage("user", _TEXT))),
    # Some templates know no system.
    ChatPrompt((ChatMessage("user", _TEXT),)),
)


def rehearse(loaded: LoadedModel, context: Context, paths: Paths) -> None:
    """Make a request of each kind ready, and a token of its answer. One that fails fails so again
    when somebody asks, who is told.
    """
    for prompt in _PROMPTS:
        generate = Generate(
            request_id="rehearsed",
            prompt=prompt,
            sampling=Sampling(seed=0, temperature=1.0),
            max_tokens=1,
            parsed=True,
        )
        try:
            prepared = prepare(generate, loaded, context, paths)
            if isinstance(prepared, Prepared):
                prepared.answer.add(prepared.prompt_ids[-1])
        except Exception:
            logger.exception("The rehearsal of a prompt failed")
