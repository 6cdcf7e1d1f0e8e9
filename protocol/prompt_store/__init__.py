"""The prompt cache's tier on disk: computed prompts, shared by all processes of a gateway.

`store` is the door. `index` knows what there is, in SQLite; `payloads` are the files; `home` is the
folder that both are in, and what happens when it isn't fit to be used.
"""

from protocol.prompt_store.entry import KEY_BYTES, Entry
from protocol.prompt_store.index import Measured
from protocol.prompt_store.store import PromptStore

__all__ = ["KEY_BYTES", "Entry", "Measured", "PromptStore"]
