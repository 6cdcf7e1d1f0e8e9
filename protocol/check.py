"""The errand `check`: an order to examine one model wholly, and the answers, as lines of JSON.

The process gets one `CheckModel`. It answers with an `Environment` as every errand does, then with
findings as they are made and a `SectionDone` behind each section, and at last with `Checked`. A
process that dies in a section has answered the sections before it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

# Beside its weights a check takes the states and logits of some hundred tokens.
BESIDE_BYTES: Final = 1 << 30

# A check has this time, unless its order names more or less within the bounds.
CHECK_S: Final = 60.0
SHORTEST_CHECK_S: Final = 10
LONGEST_CHECK_S: Final = 3600

# In the order in which they run. Those before "numbers" read no weights.
Section: TypeAlias = Literal[
    "files",
    "tokenizer",
    "template",
    "parser",
    "numbers",
    "stop",
    "ways",
    "context",
    "vectors",
    "speed",
]
# fault: answers are wrong, or there are none. warning: some requests suffer. note: good to know.
Severity: TypeAlias = Literal["fault", "warning", "note"]
# Who can heal it: the model's author, the maker of this conversion, or Bulkhead.
Owner: TypeAlias = Literal["model", "conversion", "bulkhead"]
# incomplete: nothing wrong was found, but time or memory were too short for a section.
Verdict: TypeAlias = Literal["ok", "incomplete", "warnings", "faults"]


class CheckModel(Struct, frozen=True):
    """Check the model of `source` with its adapter and its draft model as the configuration has
    them, within `seconds`.

    `context_tokens` is the context in force; None: the model's own. `kv_bits` is the configured
    size of cached keys and values. `limit_bytes` is the memory that the process may hold; where the
    model doesn't fit into it, the sections that need weights in memory are left out.
    """

    source: str
    adapter: str | None = None
    draft: str | None = None
    seconds: float = CHECK_S
    context_tokens: int | None = None
    kv_bits: int | None = None
    limit_bytes: int | None = None


class CheckAnswer(Struct, frozen=True, tag_field="answer"):
    """Base of all answers to `CheckModel`."""


class CheckFinding(CheckAnswer, frozen=True, tag="finding"):
    """One thing that is wrong or worth knowing: `what` it is, the `evidence` that was seen, and the
    `remedy`, each a sentence. An empty `remedy` means that nothing is to be done.
    """

    section: Section
    severity: Severity
    what: str
    evidence: str
    remedy: str
    owner: Owner


class SectionDone(CheckAnswer, frozen=True, tag="section"):
    """A section has ended after `seconds`. The `summary` says what was seen, or why the section
    didn't run.
    """

    section: Section
    seconds: float
    ran: bool
    summary: str


class Checked(CheckAnswer, frozen=True, tag="checked"):
    """The last answer. "ok" and "incomplete": there may be notes, but no fault and no warning."""

    verdict: Verdict
    faults: int
    warnings: int
    seconds: float


CheckAnswers: TypeAlias = CheckFinding | SectionDone | Checked
