from msgspec import Struct


class Entry(Struct, frozen=True):
    key: bytes
    parent: bytes
    token_ids: bytes
    payload_bytes: int
    kind: str


class PromptStore: ...
