"""`python -m bench.alone`: one stream after prompts of several lengths, without guesses.

Bulkhead over HTTP and mlx-lm's `generate_step`, in a process of its own, answer in turns. The rate
is that of the tokens after the first one, so the prompt doesn't count.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.conversation import RandomText, Turn, ask
from bench.machine import describe_machine
from bench.models import AGENT, endless_model, model_parser
from bench.raw import Kept
from bench.results import FailedError
from bench.servers import BulkheadServer

_TARGET: Final = 0.97


def main() -> int:
    parser = model_parser(
        "bench.alone", __doc__, rounds=5, model=None, shown="2 layers", for_gpu=True
    )
    parser.add_argument("--prompts", type=int, nargs="+", default=[200, 4000], metavar="TOKENS")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="of an answer")
    parsed = parser.parse_args()
    print(f"{describe_machine()}; answers of {parsed.tokens} tokens, medians of {parsed.rounds}\n")
    print("| prompt (tokens) | mlx-lm (tokens/s) | Bulkhead | ratio |")
    print("| ---: | ---: | ---: | ---: |")
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="bh-")))
        model = endless_model(parsed, folder, AGENT)
        config = folder / "config.toml"
        config.write_text(f'[models.bench]\npath = "{model}"\nguesses = false\n', "utf-8")
        server = BulkheadServer(model, folder / "state", folder / "log", *("--config", str(config)))
        ends.callback(server.stop)
        loop = Kept(model)
        ends.callback(loop.stop)
        words = RandomText(model, 1)
        try:
            for length in parsed.prompts:
                rates: list[tuple[float, float]] = []
                # The first one isn't counted: it loads the model.
                for _ in range(parsed.rounds + 1):
                    prompt = words.draw(length)
                    loop.restart()
                    made = (
                        loop.ask(prompt, parsed.tokens),
                        ask(server.address, server.model, prompt, parsed.tokens),
                    )
                    rates.append((_rate(made[0], parsed.tokens), _rate(made[1], parsed.tokens)))
                theirs, ours = (statistics.median(pair) for pair in zip(*rates[1:], strict=True))
                ratio = statistics.median(two / one for one, two in rates[1:])
                print(f"| {length} | {theirs:.0f} | {ours:.0f} | {ratio:.2f} |", flush=True)
        except (FailedError, OSError) as error:
            print(f"bench.alone: {error}", file=sys.stderr)
            return 1
    print(f"\nTarget: at least {_TARGET}. The ratio is the median of the rounds' ratios.")
    return 0


def _rate(turn: Turn, tokens: int) -> float:
    """Tokens a second after the first one."""
    return (tokens - 1) / (turn.whole_s - turn.first_s)


if __name__ == "__main__":
    sys.exit(main())
