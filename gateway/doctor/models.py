"""Checks of each configured model: its files, its size, its tokenizer, its template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gateway.config.model_folders import (
    check_reach,
    expand_home,
    find_adapter,
    find_draft,
    find_folder,
    find_model,
    find_program,
)
from gateway.config.model_settings import ModelSettings
from gateway.config.settings import Settings
from gateway.doctor.errands import ErrandOutcome, run_errand
from gateway.doctor.finding import Finding, Severity, error, ok, warning, worst
from gateway.doctor.installation import Installation, Running
from gateway.doctor.machine import budget_bytes
from gateway.memory.commands import estimate_of_command
from gateway.memory.fitting import Fit, Learned, fit, whole
from gateway.memory.forecast import possible_beside
from gateway.memory.leak_check import read_stranded
from gateway.memory.weights import EstimateError, options_in
from gateway.system.file_access import AwayError, DeniedError, away
from gateway.system.notation import format_size
from protocol.errands import Environment, Examine, Examined

_CHECK: Final = "model"
# The time for the imports on a busy machine.
_IMPORTS_S: Final = 60.0
# The time for a model with a large tokenizer.
_MODEL_S: Final = 15.0
_REMEDIES: Final = {
    "files": "Download it again, or correct the model's path.",
    "architecture": "mlx-lm doesn't know it: use a newer Bulkhead, or another model.",
    "tokenizer": "Download tokenizer.json and its neighbours again.",
    "template": "Download chat_template.jinja and tokenizer_config.json again, or correct them. "
    "/v1/completions works without them.",
}
_REMEDY_OF_PACKAGES: Final = (
    "Its interpreter needs versions of mlx-lm, msgspec and pyzmq that fit together."
)
# Python's messages for a setrlimit() above the hard limit, and for EMFILE.
_LIMIT: Final = ("not allowed to raise maximum limit", "Too many open files")
_REMEDY_OF_LIMIT: Final = (
    "The limit of open files is too low (`ulimit -Hn`): see the check `open files`."
)
_REMEDY_OF_DENIAL: Final = (
    "Give the permission at the screen, as docs/install.md says, for this program and for the one "
    "that the service runs."
)
DEADLINE_S: Final = 600.0


def look_at_models(installation: Installation) -> Iterator[Finding]:
    models = installation.settings.models
    if not models:
        yield from judge_served(installation.running())
    located: dict[str, str] = {}
    for model_id, model in models.items():
        if model.command:
            yield from _look_at_command(model_id, installation)
            continue
        try:
            place = _located(model, installation.settings.gateway.allow)
            check_reach(place)
            located[model_id] = place
        except AwayError as failure:
            yield error(
                _CHECK,
                str(failure),
                "Connect the disk: a running gateway then loads the model when it is needed.",
                subject=model_id,
            )
        except DeniedError as failure:
            yield error(_CHECK, str(failure), _REMEDY_OF_DENIAL, subject=model_id)
        except ValueError as failure:
            yield error(
                _CHECK,
                str(failure),
                f"Correct the path of {model_id}, or put the model there.",
                subject=model_id,
            )
    if not located:
        return
    learned = Learned(installation.state_dir.learned_path)
    stranded_bytes = read_stranded(installation.state_dir.stranded_path).bytes
    usable_bytes = budget_bytes(installation) - stranded_bytes
    for python in dict.fromkeys(models[model_id].interpreter for model_id in located):
        sources = {
            model_id: source
            for model_id, source in located.items()
            if models[model_id].interpreter == python
        }
        examined = _examined(sources, python)
        for model_id, source in sources.items():
            size = _size(source, models[model_id], installation.settings, usable_bytes, learned)
            judged = list(judge_model(model_id, examined[model_id], size))
            trouble = installation.running().troubles.get(model_id)
            if trouble is not None and worst(judged) is Severity.OK:
                # The model is sound, but the gateway may have fewer rights than this shell.
                judged = [judge_trouble(model_id, trouble)]
            yield from judged


def _look_at_command(model_id: str, installation: Installation) -> Iterator[Finding]:
    """Whether the program is there, and its memory can be had. Its port comes from the system at
    each start, so no other program can have taken it.
    """
    settings = installation.settings
    model = settings.models[model_id]
    learned = Learned(installation.state_dir.learned_path)
    stranded_bytes = read_stranded(installation.state_dir.stranded_path).bytes
    usable_bytes = budget_bytes(installation) - stranded_bytes
    try:
        program = find_program(model.command[0], model.folder)
        estimate = estimate_of_command(model, learned)
    except (OSError, ValueError) as failure:
        remedy = f"Correct the command and the files of {model_id}, or install the program."
        yield error(_CHECK, f"{failure}", remedy, subject=model_id)
        return
    possible_bytes = possible_beside(model, settings, usable_bytes, learned).bytes
    asks = f"asks for {format_size(estimate.bytes)}, {estimate.why}"
    trouble = installation.running().troubles.get(model_id)
    if estimate.bytes > possible_bytes:
        yield error(
            _CHECK,
            f"It {asks}, and {format_size(possible_bytes)} can be had.",
            "Raise memory.budget if the machine has more, or correct its key memory.",
            subject=model_id,
        )
    elif trouble is not None:
        yield judge_trouble(model_id, trouble)
    elif estimate.too_small is not None:
        yield warning(
            _CHECK,
            f"It {asks}.",
            f"Raise models.{model_id}.memory: a run that outgrows it may be ended.",
            subject=model_id,
        )
    else:
        yield ok(_CHECK, f"{program} may be run; it {asks}.", subject=model_id)


def _located(model: ModelSettings, allowed: tuple[str, ...]) -> str:
    """The folder or repository of the model. Raises: ValueError: one of its folders is missing."""
    for beside in (model.adapter, model.draft_model):
        if beside is not None and (absent := away(expand_home(beside))) is not None:
            raise absent
    if model.adapter is not None:
        find_adapter(model.adapter, allowed)
    if model.draft_model is not None:
        find_draft(model.draft_model, allowed)
    return find_model(model.path, allowed)


def _examined(sources: Mapping[str, str], python: str | None) -> dict[str, Examined | str]:
    """Examine the models in one process: the answer for each, or the reason why there is none."""
    outcome = run_errand(
        "examine",
        Examine(tuple(sources.values())),
        python,
        _IMPORTS_S + _MODEL_S * len(sources),
    )
    return read_examined(list(sources), outcome, python)


def read_examined(
    model_ids: list[str], outcome: ErrandOutcome, python: str | None
) -> dict[str, Examined | str]:
    """Assign the answers of the process to the models, in their order. The first model without an
    answer is the one that ended the process. Each model without an answer gets the failure.
    """
    try:
        if outcome.lines:
            msgspec.json.decode(outcome.lines[0], type=Environment)
        answers = [msgspec.json.decode(line, type=Examined) for line in outcome.lines[1:]]
    except msgspec.MsgspecError as failure:
        return dict.fromkeys(model_ids, f"its interpreter answers nonsense ({failure})")
    failure_text = outcome.failure or "the process ended too early"
    if not outcome.lines:
        where = "this environment" if python is None else python
        failure_text = f"no worker can run in {where}: {failure_text}"
    else:
        failure_text = f"nothing more is known about it: {failure_text}"
    examined: dict[str, Examined | str] = dict.fromkeys(model_ids, failure_text)
    examined.update(zip(model_ids, answers, strict=False))
    return examined


def _size(
    source: str, model: ModelSettings, settings: Settings, usable_bytes: int, learned: Learned
) -> Fit | None:
    """Whether the model fits into memory; None if its files allow no estimate of its size."""
    try:
        _, estimate = whole(
            find_folder(source),
            model.context_tokens,
            settings.memory.ordinary_tokens,
            model.python,
            learned,
            options_in(model),
        )
        return fit(estimate, possible_beside(model, settings, usable_bytes, learned).bytes)
    except (EstimateError, OSError, ValueError):
        return None


def judge_trouble(model_id: str, trouble: str) -> Finding:
    """The finding for a model that is sound in this shell, but not for the gateway."""
    return error(
        _CHECK,
        f"The running gateway can't load it: {trouble}",
        f"Remove this cause; then `bulkhead load {model_id}`.",
        subject=model_id,
    )


def judge_served(running: Running) -> Iterator[Finding]:
    """The findings about the models of the running gateway, of which the configuration has none."""
    if not running.models:
        yield ok(_CHECK, "None is configured.")
        return
    named = ", ".join(f"{model.id} ({model.state})" for model in running.models)
    yield ok(_CHECK, f"None is configured here. The running gateway serves {named}.")
    for model_id, trouble in running.troubles.items():
        yield judge_trouble(model_id, trouble)


def judge_model(model_id: str, examined: Examined | str, size: Fit | None) -> Iterator[Finding]:
    """`examined` is the process's answer about the model, or the reason why there is none."""
    sound = True
    if isinstance(examined, str):
        sound = False
        yield error(
            _CHECK,
            f"{examined[:1].upper()}{examined[1:]}.",
            _REMEDY_OF_LIMIT if any(name in examined for name in _LIMIT) else _REMEDY_OF_PACKAGES,
            subject=model_id,
        )
    elif examined.problem is not None:
        sound = False
        yield error(
            _CHECK,
            f"{_PROBLEMS[examined.problem]}{examined.reason.rstrip('.')}.",
            _REMEDIES[examined.problem],
            subject=model_id,
        )
    if size is not None and not size.fits:
        sound = False
        yield error(
            _CHECK,
            f"Its floor is {format_size(size.needed_bytes)} with a context of "
            f"{size.context_tokens:,} tokens, and {format_size(size.possible_bytes)} can be had.",
            "Raise memory.budget if the machine has more, or use a smaller model.",
            subject=model_id,
        )
    elif size is not None and size.is_cut:
        sound = False
        yield warning(
            _CHECK,
            f"Its context of {size.wanted_tokens:,} tokens doesn't fit into "
            f"{format_size(size.possible_bytes)}: it would get {size.context_tokens:,}.",
            f"Lower its context_tokens to {size.context_tokens}, or raise memory.budget.",
            subject=model_id,
        )
    if sound and isinstance(examined, Examined):
        yield ok(_CHECK, _praise(examined, size), subject=model_id)


_PROBLEMS: Final = {
    "files": "",
    "architecture": "It is of no kind that mlx-lm loads: ",
    "tokenizer": "Its tokenizer fails: ",
    "template": "Its chat template fails: ",
}


def _praise(examined: Examined, size: Fit | None) -> str:
    chat = "tokenizer and template work" if examined.chats else "its tokenizer works, it can't chat"
    if size is None:
        return f"Readable; {chat}."
    return (
        f"A floor of {format_size(size.needed_bytes)} with {size.context_tokens:,} tokens of "
        f"context, of {format_size(size.possible_bytes)}; {chat}."
    )
