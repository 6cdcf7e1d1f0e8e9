"""Models as people have them on their disks: each is offered once, under the name it has there."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from gateway.config.read import Configuration, Located
from gateway.library.catalogue import ModelOnDisk, catalogue, look_up, with_configured
from gateway.library.finder import Finder, Holders
from tests.gateway.library.test_library import cached, configuration, demo

SNAPSHOT = Path("snapshots") / ("a" * 40)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def sources(found: Configuration) -> dict[str, str]:
    return {model_id: place.path for model_id, place in found.located.items()}


def aliases(found: Configuration, model_id: str) -> tuple[str, ...]:
    return found.settings.models[model_id].aliases


def entries(finder: Finder, found: Configuration) -> list[ModelOnDisk]:
    models = with_configured(finder.find(found.settings), found)
    return catalogue(models, found, {}, {})


class TestLinks:
    @pytest.mark.parametrize("target", [SNAPSHOT, Path()])
    def test_link_into_cache_gives_its_name_and_model_is_listed_once(
        self, cache: Path, models: Path, target: Path
    ) -> None:
        repository = cached(cache, "org/chat")
        (models / "my-own-name").symlink_to(repository / target)
        finder = Finder()
        found = finder.with_found(configuration((str(models), "huggingface")))
        assert sources(found) == {"my-own-name": "org/chat"}
        assert aliases(found, "my-own-name") == ("chat",)
        (entry,) = entries(finder, found)
        assert (entry.source, entry.path) == ("org/chat", str(repository))
        assert entry.size_bytes > 100_000
        for name in ("my-own-name", "chat", "org/chat", str(repository / SNAPSHOT)):
            assert look_up([entry], name) is entry
        alone = Finder().with_found(configuration((str(models),)))
        assert sources(alone) == {"my-own-name": str(repository / SNAPSHOT)}

    def test_link_to_folder_elsewhere_or_beside_it(self, tmp_path: Path, models: Path) -> None:
        outside = demo(tmp_path / "elsewhere" / "0123abcd")
        beside = demo(models / "beside")
        (models / "outside").symlink_to(outside)
        (models / "second").symlink_to(beside)
        found = Finder().with_found(configuration((str(models),)))
        assert sources(found) == {"outside": str(outside), "second": str(beside)}
        assert aliases(found, "second") == ("beside",)

    def test_later_link_changes_no_id(self, models: Path) -> None:
        folder = demo(models / "model")
        finder, present = Finder(), configuration((str(models),))
        present = finder.with_found(present)
        (models / "a-link").symlink_to("model")
        later = finder.with_found(present)
        assert sources(later) == {"model": str(folder)}
        assert aliases(later, "model") == ("a-link",)
        assert look_up(entries(finder, later), "a-link") is not None

    def test_moved_link_takes_name_along(self, models: Path) -> None:
        old, new = demo(models / "old"), demo(models / "new")
        (models / "current").symlink_to("old")
        finder, present = Finder(), configuration((str(models),))
        present = finder.with_found(present)
        assert sources(present) == {"current": str(old), "new": str(new)}
        (models / "current").unlink()
        (models / "current").symlink_to("new")
        moved = finder.with_found(present)
        assert sources(moved) == {"old": str(old), "current": str(new)}
        assert aliases(moved, "current") == ("new",)

    def test_a_table_for_the_link_its_target_or_the_repository_goes_before(
        self, cache: Path, models: Path
    ) -> None:
        target = cached(cache, "org/chat") / SNAPSHOT
        (models / "my-own-name").symlink_to(target)
        for place in ("org/chat", str(target)):
            for discover in ((str(models), "huggingface"), (str(models),), ("huggingface",)):
                present = configuration(discover, models={"own": place})
                finder = Finder()
                found = finder.with_found(present)
                assert sources(found) == {"own": place}, discover
                (entry,) = entries(finder, found)
                assert (entry.ids, entry.configured) == (("own",), ("own",))


class TestCaches:
    def test_models_of_other_tools_are_served(self, cache: Path) -> None:
        (cached(cache, "org/no-refs") / "refs" / "main").unlink()
        (cached(cache, "org/other-refs") / "refs" / "main").write_text("b" * 40)
        demo(cache / "models--org--by-hand")
        demo(cache / "bare")
        demo(cache / "org" / "nested")
        cached(cache, "org/usual")
        shutil.copytree(cache / "bare", cache / "datasets--org--data")
        for name in ("config.json", "model.safetensors"):
            shutil.copy(cache / "bare" / name, cache)
        found = Finder().with_found(configuration(("huggingface",)))
        assert sources(found) == {
            "no-refs": "org/no-refs",
            "other-refs": "org/other-refs",
            "by-hand": "org/by-hand",
            "usual": "org/usual",
            "bare": str(cache / "bare"),
            "nested": str(cache / "org" / "nested"),
        }

    def test_cache_among_folders_has_names_of_repositories(
        self, cache: Path, tmp_path: Path
    ) -> None:
        folder = cached(cache, "org/chat") / SNAPSHOT
        cached(cache, "org/broken", model_type="whisper")
        found = Finder().with_found(configuration((str(cache),)))
        assert sources(found) == {"chat": str(folder)}
        both = Finder().with_found(configuration((str(tmp_path), "huggingface")))
        assert sources(both) == {"chat": "org/chat"}
        assert aliases(both, "chat") == ()


class TestNamesThatStay:
    """A gateway starts, ends, and the next one starts with what the first has written."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "names.json"

    def start(self, file: Path, present: Configuration) -> Configuration:
        finder = Finder()
        finder.read_names(file)
        found = finder.with_found(present)
        finder.store_names()
        return found

    def test_whoever_had_a_name_keeps_it(self, cache: Path, file: Path) -> None:
        present = configuration(("huggingface",))
        cached(cache, "mlx-community/Same")
        assert sources(self.start(file, present)) == {"Same": "mlx-community/Same"}
        cached(cache, "a-org/Same")
        expected = {"Same": "mlx-community/Same", "a-org/Same": "a-org/Same"}
        second = self.start(file, present)
        assert sources(second) == expected
        assert second.news == (
            "a-org/Same is served as a-org/Same, as mlx-community/Same has the name Same.",
        )
        finder = Finder()
        finder.read_names(file)
        third = finder.with_found(present)
        assert (sources(third), third.news) == (expected, ())
        entry = look_up(entries(finder, third), "a-org/Same")
        assert entry is not None
        assert entry.name_holder == "mlx-community/Same"

    def test_a_model_keeps_its_name_when_a_link_to_a_folder_above_it_goes(
        self, models: Path, file: Path
    ) -> None:
        pet = demo(models / "zoo" / "pet")
        (models / "current").symlink_to("zoo")
        present = configuration((str(models),))
        assert sources(self.start(file, present)) == {"pet": str(pet)}
        held = msgspec.json.decode(file.read_bytes(), type=Holders).names
        assert held == {"pet": str(models / "current" / "pet")}
        other = demo(models / "azoo" / "pet")
        (models / "current").unlink()
        found = self.start(file, present)
        assert sources(found) == {"pet": str(pet), "azoo/pet": str(other)}
        assert found.news == (f"{other} is served as azoo/pet, as {pet} has the name pet.",)

    def test_a_file_that_is_gone_is_written_by_the_next_search(
        self, cache: Path, file: Path
    ) -> None:
        cached(cache, "b/Same")
        present, finder = configuration(("huggingface",)), Finder()
        finder.read_names(file)
        finder.with_found(present)
        finder.store_names()
        file.unlink()
        cached(cache, "a/Same")
        finder.with_found(present)
        assert sources(self.start(file, present))["Same"] == "b/Same"

    def test_a_model_that_breaks_is_spoken_of_by_its_name(self, models: Path, file: Path) -> None:
        folder = demo(models / "Same")
        present = configuration((str(models),))
        assert self.start(file, present).broken == {}
        (folder / "model.safetensors").write_bytes(b"cut")
        found = self.start(file, present)
        assert sources(found) == {}
        assert list(found.broken) == ["Same"]
        assert "model.safetensors" in found.broken["Same"]

    def test_a_reload_writes_what_is_new(self, cache: Path, file: Path) -> None:
        cached(cache, "b/Same")
        present, finder = configuration(("huggingface",)), Finder()
        finder.read_names(file)
        finder.store_names()
        finder.with_found(present)
        cached(cache, "a/Same")
        assert sources(self.start(file, present))["Same"] == "b/Same"

    def test_a_place_that_is_away_keeps_its_names(
        self, cache: Path, models: Path, file: Path, tmp_path: Path
    ) -> None:
        folder = demo(models / "Same")
        present = configuration((str(models), "huggingface"))
        self.start(file, present)
        cached(cache, "org/Same")
        models.rename(tmp_path / "away")
        assert sources(self.start(file, present)) == {"org/Same": "org/Same"}
        (tmp_path / "away").rename(models)
        assert sources(self.start(file, present)) == {
            "Same": str(folder),
            "org/Same": "org/Same",
        }

    def test_a_disk_that_is_not_mounted_keeps_its_names(
        self, cache: Path, models: Path, file: Path, tmp_path: Path
    ) -> None:
        folder = demo(models / "disk" / "Same")
        cached(cache, "org/Same")
        present = configuration((str(models), "huggingface"))
        self.start(file, present)
        written = msgspec.json.decode(file.read_bytes(), type=Holders)
        # The test can mount no disk: it says that one was mounted here.
        mounted = Holders(written.names, written.mounts | {str(folder): str(models / "disk")})
        file.write_bytes(msgspec.json.encode(mounted))
        (models / "disk").rename(tmp_path / "away")
        (models / "disk").mkdir()
        assert sources(self.start(file, present)) == {"org/Same": "org/Same"}
        (models / "disk").rmdir()
        (tmp_path / "away").rename(models / "disk")
        assert sources(self.start(file, present))["Same"] == str(folder)

    def test_a_name_whose_model_was_removed_is_given_again(
        self, cache: Path, models: Path, file: Path
    ) -> None:
        folder = demo(models / "Same")
        cached(cache, "b/Same")
        present = configuration((str(models), "huggingface"))
        assert sources(self.start(file, present)) == {"Same": str(folder), "b/Same": "b/Same"}
        shutil.rmtree(folder)
        found = self.start(file, present)
        assert sources(found) == {"b/Same": "b/Same"}
        assert aliases(found, "b/Same") == ("Same",)
        assert found.news == (f"The name Same means b/Same now, as {folder} is gone.",)

    def test_a_place_that_is_not_looked_in_now_keeps_what_nobody_takes(
        self, cache: Path, models: Path, file: Path
    ) -> None:
        cached(cache, "org/Same")
        cached(cache, "org/Other")
        self.start(file, configuration(("huggingface",)))
        self.start(file, configuration(()))
        same = demo(models / "Same")
        both = configuration((str(models), "huggingface"))
        expected = {"Same": "org/Same", "Other": "org/Other", "models/Same": str(same)}
        assert sources(self.start(file, both)) == expected
        other = demo(models / "Other")
        alone = {"models/Same": str(same), "Other": str(other)}
        assert sources(self.start(file, configuration((str(models),)))) == alone

    def test_a_table_takes_the_name_of_what_was_found(self, models: Path, file: Path) -> None:
        one, two = demo(models / "Same"), demo(models / "other" / "Same")
        self.start(file, configuration((str(models),)))
        table = configuration((str(models),), models={"Same": str(two)})
        assert self.start(file, table).located == {
            "Same": Located(str(two)),
            "models/Same": Located(str(one)),
        }

    def test_a_file_that_makes_no_sense_is_ignored(self, models: Path, file: Path) -> None:
        folder = demo(models / "Same")
        aside = file.with_suffix(".unreadable")
        empty = configuration(())
        self.start(file, empty)
        assert self.start(file, empty).news == (), "a file without names can be read"
        for content in (b"", b"[]", b'{"names": {"Same": 3}}'):
            file.write_bytes(content)
            found = self.start(file, configuration((str(models),)))
            assert sources(found) == {"Same": str(folder)}
            assert found.news == (
                f"{file} can't be read, so models get their names anew. It is kept as {aside}.",
            )
            assert aside.read_bytes() == content
        file.write_bytes(b'{"names": {"Same": "gone"}}')
        assert sources(self.start(file, configuration((str(models),)))) == {"Same": str(folder)}
