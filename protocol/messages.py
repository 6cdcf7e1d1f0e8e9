"""The message set between the gateway and one worker.

A conversation: the worker says `Hello`, the gateway `Load`; `LoadProgress` follows until `Ready`
or `LoadFailed`. Then every `Generate` is answered by `Rendered` and its share of `Output`, up to a
delta with a finish reason, or by `RequestFailed`; every `Embed` by one `Embedded` or several, or by
`RequestFailed`. `Heartbeat` flows all the while. `Drain` or `Stop` ends it.

A gateway that is replaced hands its workers over: it says `Move`, and `Moved` is the last that the
worker says on this channel. What follows is held back until the next gateway says `Settle` on the
other channel, or this one `Stay`: nothing is lost in between, and nothing said twice.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from protocol.answers import Embedded, Output, Rendered, RequestFailed
from protocol.life import (
    ClearPromptCache,
    Drain,
    Heartbeat,
    Hello,
    Load,
    LoadFailed,
    LoadProgress,
    PromptCacheCleared,
    RankLost,
    Ready,
    Stop,
)
from protocol.memory import Limit, Need
from protocol.moves import Move, Moved, Settle, Stay
from protocol.requests import Cancel, Embed, Generate
from protocol.shape import digest

GatewayMessage: TypeAlias = (
    Load
    | Generate
    | Embed
    | Cancel
    | Limit
    | ClearPromptCache
    | Move
    | Settle
    | Stay
    | Drain
    | Stop
)

WorkerMessage: TypeAlias = (
    Hello
    | LoadProgress
    | Ready
    | LoadFailed
    | Rendered
    | Output
    | Embedded
    | RequestFailed
    | Heartbeat
    | Need
    | PromptCacheCleared
    | Moved
    | RankLost
)

# What is said in these words: to be raised when a message means something else than before.
_MEANING: Final = 6

# An installation may change under a gateway that runs: its new workers must not be misunderstood.
PROTOCOL_VERSION: Final = f"{_MEANING}-{digest(GatewayMessage | WorkerMessage)}"
