"""A process that writes and reads blocks until it is killed; exits with 1 if it was given a lie."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path

from protocol.prompt_store.store import PromptStore
from tests.protocol.prompt_store.tree import PLENTY, ROOT, block, payload_of


def main(folder: str, most_bytes: str, seed: str) -> int:
    store = PromptStore(Path(folder), int(most_bytes), PLENTY)
    choice = random.Random(int(seed))
    known = [ROOT]
    print("writing", flush=True)
    for _ in itertools.count():
        entry, payload = block(choice.choice([ROOT, *known[-20:]]), choice.randrange(4))
        store.write(entry, [payload], f"m{choice.randrange(2)}")
        known.append(entry.key)
        key = choice.choice(known)
        if store.read(key) not in (None, payload_of(key)):
            return 1
        if choice.random() < 0.01:
            store.clear("m0")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
