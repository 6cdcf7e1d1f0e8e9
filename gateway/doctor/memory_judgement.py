"""Judges the figures of `doctor --memory`. A line has an assumption, what was found, a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, Literal

from msgspec import Struct

from gateway.memory.fitting import PROCESS_BYTES
from gateway.system.memory import BackEnd
from gateway.system.notation import format_size
from protocol.errands import AttentionPeak, Environment, JoinedArray, StepTimes
from protocol.life import MlxMemory


class Machine(Struct, frozen=True):
    """The measured machine. `device` is mx.device_info(), empty if MLX didn't answer."""

    system: str
    back_end: BackEnd
    device: dict[str, Any]
    environment: Environment | None
    total_bytes: int
    available_bytes: int
    pressure: str | None
    wired_limit_mb: int | None


class HeldMemory(Struct, frozen=True):
    """The memory of a probe at the moment `what`: its footprint, and MLX's own account."""

    what: str
    footprint_bytes: int
    memory: MlxMemory

    @property
    def beside_bytes(self) -> int:
        """The part of the footprint that isn't in MLX's account."""
        return self.footprint_bytes - self.memory.active_bytes - self.memory.cache_bytes


class ProcessFigures(Struct, frozen=True):
    """The memory of a probe: `imported` after the imports, `holding` as it holds more and more,
    `dropped` after it freed its arrays, `trimmed` after it gave back MLX's buffers, too.
    """

    imported: HeldMemory
    holding: tuple[HeldMemory, ...]
    dropped: HeldMemory
    trimmed: HeldMemory


class Gauge(Struct, frozen=True):
    """The machine's memory at one moment."""

    available_bytes: int
    wired_bytes: int | None


class ReturnFigures(Struct, frozen=True):
    """The machine's memory `before` a probe took `held_bytes`, `meanwhile`, and `after` its end.

    The probe took `exit_s` to end. From then on `back_s` passed until all memory was back; None if
    the memory wasn't back within `watched_s`.
    """

    held_bytes: int
    before: Gauge
    meanwhile: Gauge
    after: Gauge
    exit_s: float
    back_s: float | None
    watched_s: float


class StepFigures(Struct, frozen=True):
    """Times of steps. `busy` is the load of the processors before the steps, from 0 to 1."""

    times: StepTimes
    busy: float


class AttentionFigures(Struct, frozen=True):
    """The peak of memory in attention, for one head dimension and one kind of mask."""

    head_dim: int
    mask: Literal["array", "causal"]
    peak: AttentionPeak


class RightsFigures(Struct, frozen=True):
    """Footprints of the doctor, of a child and of process 1: bytes, or why one can't be read."""

    own: int | str
    child: int | str
    first_process: int | str


class LineVerdict(StrEnum):
    AS_ASSUMED = "as assumed"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class ReportLine(Struct, frozen=True):
    """A line of the report. The texts are parts of a sentence, without a full stop."""

    part: str
    assumed: str
    found: str
    verdict: LineVerdict


def line(part: str, assumed: str, found: str, *, holds: bool | None) -> ReportLine:
    """Make a line. `holds` says whether the assumption holds; None if that is unknown."""
    verdicts = {
        True: LineVerdict.AS_ASSUMED,
        False: LineVerdict.DIFFERS,
        None: LineVerdict.UNKNOWN,
    }
    return ReportLine(part, assumed, found, verdicts[holds])


_MIB: Final = 1 << 20
# The noise in the readings of one process, as in gateway.workers.report.
_NOISE_BYTES: Final = 64_000_000
_NOISE_SHARE: Final = 0.05
# The assumed size of a process may be off by this share: it serves until a process is measured.
_PROCESS_SHARE: Final = 0.5
# The machine's figures show a probe's memory if they change by at least this share of it. Other
# programs change these figures, too.
_SHOWN_SHARE: Final = 0.5
_BACK_SHARE: Final = 0.1
# A step counts as slower above this ratio of times: other work on the machine explains less.
_SLOWER: Final = 1.25
_BUSY: Final = 0.5
# The highest ratio without any buffers. Steps that were a tenth slower were seen (mlx#777).
_MILD: Final = 1.5
# Scores count as written out if memory grows by this share of their matrix. In a single kernel
# memory hardly grows.
_WRITTEN_SHARE: Final = 0.5
# Head dimensions for which MLX has a single kernel (scaled_dot_product_attention.cpp).
_ONE_KERNEL: Final = (64, 128)
_METAL_KEY: Final = "max_recommended_working_set_size"
# The working set that macOS itself chooses is between these shares of memory (ollama#17367).
_WORKING_SET: Final = (0.6, 0.9)
_SAME: Final = 0.02


def judge_process(figures: ProcessFigures, back_end: BackEnd) -> Iterator[ReportLine]:
    """Judge the footprint after the imports, then the growth of its part beside MLX's account."""
    imported, assumed = figures.imported.footprint_bytes, PROCESS_BYTES[back_end]
    yield line(
        "imports",
        f"a worker without a model holds about {format_size(assumed)}, until it was measured",
        format_size(imported),
        holds=abs(imported - assumed) <= assumed * _PROCESS_SHARE,
    )
    base = figures.imported.beside_bytes
    for held in (*figures.holding, figures.dropped, figures.trimmed):
        size = held.memory.active_bytes + held.memory.cache_bytes
        beside = held.beside_bytes - base
        noise = max(_NOISE_BYTES, size * _NOISE_SHARE)
        yield line(
            "account",
            f"{held.what}: footprint less imports is MLX's account, within "
            f"{format_size(int(noise))}",
            f"footprint {format_size(held.footprint_bytes)}, MLX active "
            f"{format_size(held.memory.active_bytes)}, buffers "
            f"{format_size(held.memory.cache_bytes)}, beside them and the imports "
            f"{format_size(beside)}",
            holds=abs(beside) <= noise,
        )


def judge_return(how: str, figures: ReturnFigures) -> ReportLine:
    """Judge whether the memory of a probe came back; `how` says how the probe ended. Wired memory
    is judged if it showed the probe's memory. Otherwise available memory is judged: it also falls
    for other reasons, so it can prove a return, but no loss.
    """
    before, meanwhile, after = figures.before, figures.meanwhile, figures.after
    shown: list[str] = []
    if before.wired_bytes is not None and meanwhile.wired_bytes is not None:
        shown.append(
            f"wired {format_size(before.wired_bytes)}, then {format_size(meanwhile.wired_bytes)}, "
            f"after the end {format_size(after.wired_bytes or 0)}"
        )
    shown.append(
        f"available {format_size(before.available_bytes)}, then "
        f"{format_size(meanwhile.available_bytes)}, after the end "
        f"{format_size(after.available_bytes)}"
    )
    if figures.back_s is not None:
        when = f"back after {figures.back_s:.1f} s"
    else:
        when = f"not back within {figures.watched_s:.0f} s"
    if not is_shown(figures):
        when = "the machine's figures did not show it"
    return line(
        "return",
        f"{how}: all that a process held comes back within {figures.watched_s:.0f} s",
        f"it held {format_size(figures.held_bytes)}, and its end took {figures.exit_s:.1f} s; "
        f"{'; '.join(shown)}; {when}",
        holds=_returned(figures),
    )


def _returned(figures: ReturnFigures) -> bool | None:
    if not is_shown(figures):
        return None
    if figures.back_s is not None:
        return True
    return False if wired_shows(figures) else None


def wired_shows(figures: ReturnFigures) -> bool:
    """Whether the machine's wired memory rose when the probe took memory."""
    before, meanwhile = figures.before.wired_bytes, figures.meanwhile.wired_bytes
    if before is None or meanwhile is None:
        return False
    return meanwhile - before >= figures.held_bytes * _SHOWN_SHARE


def is_back(figures: ReturnFigures) -> bool:
    """Whether the machine's memory is as before the probe, within the noise of other programs."""
    slack = max(_NOISE_BYTES, figures.held_bytes * _BACK_SHARE)
    before, after = figures.before, figures.after
    if wired_shows(figures):
        return (after.wired_bytes or 0) - (before.wired_bytes or 0) <= slack
    return before.available_bytes - after.available_bytes <= slack


def is_shown(figures: ReturnFigures) -> bool:
    """Whether the machine's wired or available memory showed the probe's memory."""
    fell = figures.before.available_bytes - figures.meanwhile.available_bytes
    return wired_shows(figures) or fell >= figures.held_bytes * _SHOWN_SHARE


def judge_steps(figures: StepFigures, back_end: BackEnd) -> Iterator[ReportLine]:
    """Judge the times of steps under limits, as ratios to the time without limits. A slow step
    proves nothing on a busy machine.
    """
    times, busy = figures.times, figures.busy
    base = times.without_limits_s
    active = format_size(times.active_bytes)
    above = f"a memory limit above what is active ({active}) costs nothing"
    yield _step(above, base, times.limit_above_s, busy)
    below = times.limit_below_s / base
    slows = back_end is BackEnd.METAL
    yield line(
        "steps",
        "a memory limit below what is active "
        + ("makes steps slower, so it is never set" if slows else "is never set"),
        _times(base, times.limit_below_s),
        holds=below > _SLOWER if slows else True,
    )
    yield _step("32 MB of buffers are enough for a step", base, times.small_cache_s, busy)
    without = "without any buffers steps are slower, but not by half"
    yield _step(without, base, times.no_cache_s, busy, most=_MILD)


def _step(
    assumed: str, base_s: float, found_s: float, busy: float, *, most: float = _SLOWER
) -> ReportLine:
    holds: bool | None = found_s / base_s <= most
    found = _times(base_s, found_s)
    if not holds and busy > _BUSY:
        holds, found = None, f"{found}, while the processors were {busy:.0%} busy"
    return line("steps", assumed, found, holds=holds)


def _times(base_s: float, found_s: float) -> str:
    return (
        f"{found_s * 1000:.2f} ms, {base_s * 1000:.2f} ms without limits, "
        f"a ratio of {found_s / base_s:.2f}"
    )


def judge_attention(figures: AttentionFigures, back_end: BackEnd) -> ReportLine:
    """Judge whether attention writes its scores out. If it does, where one kernel was assumed,
    estimates of memory are too low. The opposite is no fault: the line only notes it.
    """
    share = figures.peak.grown_bytes / max(figures.peak.scores_grown_bytes, 1)
    written = share >= _WRITTEN_SHARE
    assumed_written = back_end is not BackEnd.METAL or figures.head_dim not in _ONE_KERNEL
    assumed = "written out" if assumed_written else "computed in one kernel"
    found = "written out" if written else "computed in one kernel"
    if assumed_written and not written:
        found += ", so estimates are higher than needed"
    mask = "an array as mask" if figures.mask == "array" else 'the mask "causal"'
    return line(
        "attention",
        f"head dimension {figures.head_dim}, {mask}: scores are {assumed}",
        f"the peak grew by {share:.2f} of the scores' matrix: {found}",
        holds=assumed_written or not written,
    )


def judge_join(joined: JoinedArray) -> ReportLine:
    """Note whether a large joined array is right. Workers make none of this size, so the opposite
    is no fault.
    """
    found = f"{joined.wrong:,} of {joined.elements:,} elements are wrong"
    if not joined.wrong:
        found = f"all of {joined.elements:,} elements are right, so workers could make such arrays"
    return line(
        "large array",
        "MLX may join arrays wrongly to one of more than 2^31 elements, so workers make none",
        found,
        holds=True,
    )


def judge_working_set(machine: Machine) -> Iterator[ReportLine]:
    """Judge the recommended working set by iogpu.wired_limit_mb and the machine's memory."""
    if machine.back_end is not BackEnd.METAL:
        yield _elsewhere(machine)
        return
    recommended = _size(machine.device, _METAL_KEY)
    if recommended is None:
        yield line("working set", "MLX recommends one on every Mac", "none", holds=False)
        return
    share = recommended / machine.total_bytes
    limit = "unknown" if machine.wired_limit_mb is None else machine.wired_limit_mb
    found = (
        f"{format_size(recommended)}, {share:.2f} of {format_size(machine.total_bytes)}; "
        f"iogpu.wired_limit_mb is {limit}"
    )
    if machine.wired_limit_mb:
        set_bytes = machine.wired_limit_mb * _MIB
        yield line(
            "working set",
            f"it follows iogpu.wired_limit_mb, so is {format_size(set_bytes)}",
            found,
            holds=abs(recommended - set_bytes) <= set_bytes * _SAME,
        )
        return
    least, most = _WORKING_SET
    yield line(
        "working set",
        f"between {least:g} and {most:g} of the memory, by the system's own choice",
        f"{found}; to see it follow: sudo sysctl iogpu.wired_limit_mb={_lower_mb(recommended)}, "
        "this check again, then 0 instead",
        holds=least <= share <= most,
    )


def _elsewhere(machine: Machine) -> ReportLine:
    card = _size(machine.device, "total_memory")
    if machine.back_end is BackEnd.CUDA:
        found = "no size" if card is None else format_size(card)
        assumed = "MLX names the size of the card's own memory"
        return line("working set", assumed, found, holds=card is not None)
    assumed = "models are in the machine's memory, and MLX recommends nothing"
    return line("working set", assumed, format_size(machine.total_bytes), holds=True)


def _lower_mb(recommended_bytes: int) -> int:
    """A limit in MiB below the recommended working set, and so safe on any machine."""
    return recommended_bytes // _MIB * 3 // 4


def _size(device: dict[str, Any], key: str) -> int | None:
    size = device.get(key)
    return size if isinstance(size, int) and size > 0 else None


def judge_rights(figures: RightsFigures) -> Iterator[ReportLine]:
    """Judge whose footprints can be read. Footprints of other users' processes aren't needed."""
    for whose, found in (("own", figures.own), ("a child's", figures.child)):
        yield line(
            "rights",
            f"{whose} footprint can be read",
            _reading(found),
            holds=isinstance(found, int),
        )
    yield line(
        "rights",
        "that of process 1 can't be read without privilege, and isn't needed",
        _reading(figures.first_process),
        holds=True,
    )


def _reading(found: int | str) -> str:
    return found if isinstance(found, str) else format_size(found)


def failed(part: str, reason: str) -> ReportLine:
    """The line for a part that could not be measured."""
    return line(part, "it can be measured", f"failed: {reason}", holds=None)
