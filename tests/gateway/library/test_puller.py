"""The process that pulls a model, against a hub that fails as networks do."""

from __future__ import annotations

import random
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.library.description import describe
from gateway.library.hub import Hub as HubSource
from gateway.library.hub_process import HubFailure, Planned, Progressed, PullFinished
from gateway.library.sources import ChangedError
from tests.support.disk_folders import on_disk, shard
from tests.support.gateway import eventually, gone
from tests.support.hub import Answer, Hub, digest
from tests.support.pulls import (
    CONFIG,
    FOLDER,
    NAME,
    STALL_S,
    WANTED,
    Here,
    Puller,
    check_whole,
    left,
    model_files,
    pull,
    pull_by_process,
    survive,
)

FILES = model_files()
TOTAL = sum(len(FILES[name]) for name in WANTED)
# Of a file of weights, then nothing: whoever reads it is in the middle for as long as a test takes.
HALF_BYTES = 400_000
HALF = Answer(after=HALF_BYTES, stall=True)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({NAME: FILES}) as running:
        yield running


@pytest.mark.processes
def test_the_files_that_are_needed_land_in_the_cache(hub: Hub, tmp_path: Path) -> None:
    with Puller(tmp_path, endpoint=hub.url) as puller:
        plan = puller.plan()
        assert left(tmp_path) == []
        puller.accept()
        done = puller.end()
    assert (plan.repository, plan.files, plan.total_bytes) == (NAME, len(WANTED), TOTAL)
    assert (plan.missing_bytes, plan.element_bytes) == (TOTAL, 2)
    assert plan.weight_bytes == sum(len(FILES[file]) for file in FILES if "model-" in file)
    assert plan.config["num_hidden_layers"] == 2
    assert isinstance(done, PullFinished)
    assert done.folder == str(tmp_path / FOLDER / "snapshots" / done.commit)
    check_whole(tmp_path)


def test_huggingface_hub_itself_finds_them(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import scan_cache_dir, snapshot_download

    assert isinstance(pull(tmp_path, endpoint=hub.url), PullFinished)
    (found,) = scan_cache_dir(tmp_path).repos
    assert (found.repo_id, found.size_on_disk) == (NAME, TOTAL)
    at = snapshot_download(NAME, cache_dir=tmp_path, local_files_only=True)
    assert (Path(at) / "config.json").read_bytes() == CONFIG


def test_fetched_files_are_not_read_again(hub: Hub, tmp_path: Path) -> None:
    assert isinstance(pull(tmp_path, endpoint=hub.url), PullFinished)
    hub.ranges.clear()
    again = Here(tmp_path, endpoint=hub.url)
    assert isinstance(again.run(), PullFinished)
    assert again.plan.missing_bytes == 0
    # The configuration is looked at for the plan.
    assert hub.ranges == [f"bytes=0-{len(CONFIG) - 1}"]


def test_a_new_revision_reads_what_changed_and_then_is_the_one_that_is_found(
    hub: Hub, tmp_path: Path
) -> None:
    assert isinstance(pull(tmp_path, endpoint=hub.url), PullFinished)
    change = {"chat_template.jinja": b"{{ other }}"}
    hub.repositories[NAME].push(change)
    again = Here(tmp_path, endpoint=hub.url)
    assert isinstance(again.run(), PullFinished)
    assert again.plan.missing_bytes == len(b"{{ other }}")
    check_whole(tmp_path, FILES | change)


@pytest.mark.processes
def test_a_killed_one_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.plan = lambda name: HALF if "model-" in name else Answer()
    with Puller(tmp_path, endpoint=hub.url) as puller:
        puller.plan()
        puller.accept()
        puller.until(3 * HALF_BYTES)
        puller.popen.kill()
    names = left(tmp_path)
    assert names
    assert all("/blobs/" in text for text in names)
    assert any(name.endswith(".incomplete") for name in names)
    had = sum((tmp_path / name).stat().st_size for name in names)
    hub.plan = lambda _name: Answer()
    hub.ranges.clear()
    again = Here(tmp_path, endpoint=hub.url)
    assert isinstance(again.run(), PullFinished)
    assert again.plan.missing_bytes == TOTAL - had
    assert any(not span.startswith("bytes=0-") for span in hub.ranges if span)
    check_whole(tmp_path)


@pytest.mark.processes
def test_kills_resets_and_stalls(tmp_path: Path) -> None:
    survive(tmp_path, kills=3, faults=5, seed=3, shard_bytes=700_000)


@pytest.mark.parametrize("moment", ["config.json", "main"])
def test_pull_killed_at_its_end_leaves_nothing(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Killed(BaseException):
        """Nothing is tidied up after a SIGKILL."""

    replace = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if target.name == moment:
            raise Killed
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(Killed):
            pull(tmp_path, endpoint=hub.url)
    # The next process has another id.
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert isinstance(pull(tmp_path, endpoint=hub.url), PullFinished)
    check_whole(tmp_path)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(after=100_000),
        Answer(after=100_000, stall=True),
        Answer(after=0, stall=True),
        Answer(after=100_000, ranges=False),
        Answer(body=b"<html>Please log in</html>"),
        Answer(body=b"x" * 5_000_000),
        Answer(status=500),
        Answer(status=429, headers={"retry-after": "0"}),
        Answer(status=403, at_cdn=True),
    ],
    ids=["reset", "stall", "silence", "no ranges", "short", "long", "500", "429", "expired"],
)
def test_two_faults_of_a_kind(hub: Hub, tmp_path: Path, answer: Answer) -> None:
    answers = [answer, answer]
    hub.plan = lambda name: answers.pop() if answers and "00001-of" in name else Answer()
    assert isinstance(pull(tmp_path, endpoint=hub.url, stall_s=STALL_S), PullFinished)
    assert not answers
    check_whole(tmp_path)


def test_the_hub_that_is_busy_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    hub.api_answers = [Answer(status=503), Answer(status=429, headers={"retry-after": "0"})]
    patient = Here(tmp_path, endpoint=hub.url)
    assert isinstance(patient.run(), PullFinished)
    troubles = [message.trouble for message in patient.messages if isinstance(message, Progressed)]
    assert any(trouble is not None and "too often" in trouble for trouble in troubles)


def test_a_byte_that_was_wrong_once(hub: Hub, tmp_path: Path) -> None:
    name = "model-00001-of-00003.safetensors"
    answers = [Answer(body=bytes(len(FILES[name])))]
    hub.plan = lambda text: answers.pop() if answers and text == name else Answer()
    assert isinstance(pull(tmp_path, endpoint=hub.url), PullFinished)
    check_whole(tmp_path)


def test_bytes_that_stay_wrong_are_never_offered(hub: Hub, tmp_path: Path) -> None:
    name = "model-00001-of-00003.safetensors"
    body = bytes(len(FILES[name]))
    hub.plan = lambda text: Answer(body=body) if text == name else Answer()
    failed = pull(tmp_path, endpoint=hub.url)
    assert isinstance(failed, HubFailure)
    assert (failed.code, name in failed.message) == ("wrong_bytes", True)
    assert not (tmp_path / FOLDER / "refs" / "main").exists()
    assert digest(name, FILES[name]) not in {path.name for path in tmp_path.rglob("*")}


def test_a_spoiled_part_is_found_out(hub: Hub, tmp_path: Path) -> None:
    """As a power failure leaves one."""
    name = "model-00002-of-00003.safetensors"
    part = tmp_path / FOLDER / "blobs" / f"{digest(name, FILES[name])}.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(300_000))
    assert isinstance(pull(tmp_path, endpoint=hub.url), PullFinished)
    check_whole(tmp_path)


def test_a_repository_that_is_pushed_to_meanwhile(hub: Hub, tmp_path: Path) -> None:
    """One revision or the other, never some of each."""
    changed = {"model-00002-of-00003.safetensors": random.Random(9).randbytes(500_000)}
    surprised = Here(tmp_path, lambda: hub.repositories[NAME].push(changed), endpoint=hub.url)
    assert isinstance(surprised.run(), PullFinished)
    check_whole(tmp_path, FILES | changed)


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors"])
def test_another_file_of_the_same_size_is_not_read(hub: Hub, name: str) -> None:
    source = HubSource(hub.url, 60.0)
    listing = source.listing(NAME)
    (file,) = (remote_file for remote_file in listing.files if remote_file.name == name)
    hub.repositories[NAME].files[name] = bytes(file.size_bytes)
    with pytest.raises(ChangedError, match="has changed"), source.read(listing, file, 0):
        pytest.fail("the file was read")


@pytest.mark.parametrize(
    ("model", "code", "said"),
    [
        ("org/other", "not_found", "There is no model org/other"),
        ("org/model:3bit", "not_found", "org/model-3bit, mlx-community/model-3bit"),
        ("nonsense", "not_found", "expected OWNER/NAME"),
        ("org/gguf", "no_model", "GGUF"),
    ],
)
def test_unavailable_model_fails_with_code(
    hub: Hub, tmp_path: Path, model: str, code: str, said: str
) -> None:
    with Hub({"org/gguf": {"config.json": CONFIG, "a.gguf": b"GGUF"}, NAME: FILES}) as other:
        failed = pull(tmp_path, endpoint=other.url, model=model)
    assert isinstance(failed, HubFailure)
    assert (failed.code, said in failed.message) == (code, True), failed
    assert left(tmp_path) == []


def test_a_quantization_is_a_repository_with_its_name(tmp_path: Path) -> None:
    names = ("mlx-community/m-4bit", "mlx-community/m-8bit")
    with Hub(dict.fromkeys(names, FILES)) as hub:
        asked = Here(tmp_path, endpoint=hub.url, model="org/m:4bit")
        assert isinstance(asked.run(), PullFinished)
        assert asked.plan.repository == names[0]
        failed = pull(tmp_path, endpoint=hub.url, model="org/m:3bit")
    assert isinstance(failed, HubFailure)
    assert all(name in failed.message for name in names)


@pytest.mark.processes
def test_a_gated_one_says_how_to_get_in_and_the_token_stays_with_the_hub(
    hub: Hub, tmp_path: Path
) -> None:
    hub.token = "hf_secret"
    home = {"HF_HOME": str(tmp_path / "home")}
    failed = pull_by_process(tmp_path / "cache", {**home, "HF_TOKEN": "hf_wrong"}, endpoint=hub.url)
    assert isinstance(failed, HubFailure)
    assert (failed.code, "accept its terms" in failed.message) == ("not_allowed", True)
    assert "hf_wrong" not in failed.message
    done = pull_by_process(tmp_path / "cache", {**home, "HF_TOKEN": hub.token}, endpoint=hub.url)
    assert isinstance(done, PullFinished)
    assert f"Bearer {hub.token}" in hub.tokens["hub"]
    assert hub.tokens["cdn"] == {None}


@pytest.mark.processes
def test_the_endpoint_of_the_environment(hub: Hub, tmp_path: Path) -> None:
    assert isinstance(pull_by_process(tmp_path, {"HF_ENDPOINT": hub.url}), PullFinished)


def test_silent_hub_fails_early(tmp_path: Path) -> None:
    failed = pull(tmp_path, endpoint="http://127.0.0.1:9", answer_s=0.05)
    assert isinstance(failed, HubFailure)
    assert (failed.code, "127.0.0.1:9" in failed.message) == ("unreachable", True)
    assert "HF_ENDPOINT" in failed.message
    assert "hub.folder" in failed.message


def test_a_hub_that_is_silent_from_the_beginning_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        failed = pull(tmp_path, endpoint=endpoint, answer_s=0.2, stall_s=300.0)
        assert isinstance(failed, HubFailure)
        assert (failed.code, "did not answer" in failed.message) == ("unreachable", True)


@pytest.mark.processes
def test_an_earlier_pull_goes_on_waiting_for_the_hub(tmp_path: Path) -> None:
    order = {"answer_s": 0.05, "patience_s": 3.0, "pause_s": 0.1, "goes_on": True}
    with Puller(tmp_path, endpoint="http://127.0.0.1:9", **order) as puller:
        assert isinstance(puller.end(), HubFailure)
        assert len(puller.messages) > 2


def test_a_full_disk_is_said_before_it_begins(hub: Hub, tmp_path: Path) -> None:
    hub.claimed["model-00001-of-00003.safetensors"] = 1 << 60
    failed = pull(tmp_path, endpoint=hub.url)
    assert isinstance(failed, HubFailure)
    assert (failed.code, "are free" in failed.message) == ("disk_full", True)
    assert left(tmp_path) == []
    assert not any("/resolve/" in text for text in hub.asked)


def _on_hub(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


SIDE = "optiq/optiq_vision.safetensors"


@pytest.mark.parametrize(
    ("name", "more", "weights"),
    [
        ("index of another sharding", {}, {"model.safetensors"}),
        ("index of PyTorch's files", {SIDE: b""}, {"model.safetensors"}),
        ("index cut off", {SIDE: b""}, {"model.safetensors"}),
        ("index elsewhere", {SIDE: b""}, {"model.safetensors"}),
        ("pointer beside", {}, {"model.safetensors"}),
        ("attributes of macOS", {}, {"model.safetensors"}),
        ("shards left beside shards", {}, {shard(1, 2), shard(2, 2)}),
        ("index of side files", {}, {shard(1, 2), shard(2, 2)}),
        (
            "index of side files",
            {SIDE: b"", "a/b.safetensors": b""},
            {shard(1, 2), shard(2, 2), SIDE},
        ),
    ],
)
def test_files_of_load_are_pulled_and_served(
    name: str, more: dict[str, bytes], weights: set[str], tmp_path: Path
) -> None:
    with Hub({NAME: _on_hub(on_disk(tmp_path / "model", name)) | more}) as hub:
        done = pull(tmp_path / "cache", endpoint=hub.url)
    assert isinstance(done, PullFinished), done
    pulled = _on_hub(Path(done.folder))
    assert {text for text in pulled if text.endswith(".safetensors")} == weights
    assert describe(Path(done.folder)).problem is None


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (["tokenizer.json", shard(1, 2)], f"is not whole at its source: {shard(2, 2)} is missing"),
        (["model.safetensors"], "is not whole at its source: there is no tokenizer"),
    ],
)
def test_unservable_model_is_not_pulled(names: list[str], lost: str, tmp_path: Path) -> None:
    with Hub({NAME: {"config.json": CONFIG, **dict.fromkeys(names, b"")}}) as hub:
        failed = pull(tmp_path / "cache", endpoint=hub.url)
    assert isinstance(failed, HubFailure)
    assert (failed.code, lost in failed.message) == ("no_model", True), failed.message
    assert left(tmp_path) == []


def test_names_that_lead_elsewhere(tmp_path: Path) -> None:
    with Hub({NAME: {**FILES, "a/../../../../evil.json": b"{}"}}) as hub:
        failed = pull(tmp_path / "cache", endpoint=hub.url)
    assert isinstance(failed, HubFailure)
    assert (failed.code, "no safe name" in failed.message) == ("broken", True)
    assert left(tmp_path) == []


@pytest.mark.processes
def test_second_pull_of_repository_is_busy(hub: Hub, tmp_path: Path) -> None:
    hub.plan = lambda name: HALF if "model-" in name else Answer()
    with Puller(tmp_path, endpoint=hub.url) as first:
        first.plan()
        first.accept()
        first.until(1)
        second = pull(tmp_path, endpoint=hub.url)
    assert isinstance(second, HubFailure)
    assert second.code == "busy"


@pytest.mark.processes
@pytest.mark.parametrize("agreed", [False, True])
def test_it_ends_with_whoever_started_it(hub: Hub, tmp_path: Path, agreed: bool) -> None:
    hub.plan = lambda name: HALF if "model-" in name else Answer()
    with Puller(tmp_path, endpoint=hub.url) as puller:
        puller.plan()
        if agreed:
            puller.accept()
            puller.until(1)
        assert puller.popen.stdin is not None
        puller.popen.stdin.close()
        eventually(lambda: gone(puller.popen.pid))
    if not agreed:
        assert left(tmp_path) == []


@pytest.mark.processes
def test_ctrl_c_is_for_its_owner(hub: Hub, tmp_path: Path) -> None:
    with Puller(tmp_path, endpoint=hub.url) as puller:
        assert isinstance(puller.plan(), Planned)
        puller.popen.send_signal(signal.SIGINT)
        puller.accept()
        assert isinstance(puller.end(), PullFinished)


@pytest.mark.processes
@pytest.mark.parametrize("layout", ["plain", "cache"])
def test_a_folder_instead_of_the_hub(hub: Hub, tmp_path: Path, layout: str) -> None:
    shelf = tmp_path / "shelf"
    if layout == "cache":
        assert isinstance(pull(shelf, endpoint=hub.url), PullFinished)
    else:
        for name, content in FILES.items():
            (shelf / NAME / name).parent.mkdir(parents=True, exist_ok=True)
            (shelf / NAME / name).write_bytes(content)
    offline = {"HF_HUB_OFFLINE": "1"}
    cache = tmp_path / "cache"
    assert isinstance(pull_by_process(cache, offline, folder=str(shelf)), PullFinished)
    check_whole(cache)
    missing = pull(cache, folder=str(shelf), model="org/other")
    assert isinstance(missing, HubFailure)
    assert (missing.code, str(shelf) in missing.message) == ("not_found", True)
    near = pull(cache, folder=str(shelf), model=f"{NAME}z")
    assert isinstance(near, HubFailure)
    assert near.message.endswith(f" There are: {NAME}.")
    lost = pull(cache, folder=str(tmp_path / "unmounted"))
    assert isinstance(lost, HubFailure)
    assert lost.code == "offline"


@pytest.mark.processes
def test_offline_by_the_environment(tmp_path: Path) -> None:
    failed = pull_by_process(tmp_path, {"HF_HUB_OFFLINE": "1"})
    assert isinstance(failed, HubFailure)
    assert (failed.code, "HF_HUB_OFFLINE" in failed.message) == ("offline", True)
