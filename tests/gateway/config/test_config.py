"""Configuration: what goes before what, and every mistake at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.config.layers import ConfigError
from gateway.config.model_folders import DEMO_FOLDER, locate, model_from_flag
from gateway.config.model_settings import ModelSettings
from gateway.config.read import read_configuration, read_settings
from gateway.config.settings import Flags, Settings
from gateway.system.notation import format_size, parse_size


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def _read(file: Path, text: str, **flags: object) -> Settings:
    file.write_text(text, "utf-8")
    return read_settings(Flags(config=file, **flags), {})  # type: ignore[arg-type]


def _mistakes(file: Path, text: str, **flags: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _read(file, text, **flags)
    return [str(mistake) for mistake in caught.value.mistakes]


class TestReading:
    def test_no_file_is_needed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        settings = read_settings(Flags(), {})
        assert settings.gateway.port == 8642
        assert settings.models == {}

    def test_every_key_of_the_surface(self, file: Path) -> None:
        settings = _read(
            file,
            """
            [gateway]
            host = "127.0.0.1"
            port = 1
            state_dir = "/s"
            drain_s = 1
            [memory]
            budget = "75%"
            headroom = "2GB"
            [workers]
            spare = 0
            load_timeout_s = 1.0
            restart_limit = 1
            restart_window_s = 1.0
            heartbeat_timeout_s = 1.0
            stall_timeout_s = 1.0
            [queue]
            depth = 1
            deadline_s = 1.0
            max_wait_s = 1.0
            [models."qwen3-4b"]
            path = "p"
            aliases = ["default"]
            pinned = true
            preload = true
            ttl_s = 1.0
            priority = -1
            max_concurrency = 1
            context_tokens = 1
            python = "/python"
            """,
        )
        assert settings.gateway.drain_s == 1.0
        assert settings.models["qwen3-4b"].aliases == ("default",)

    def test_flags_go_before_the_environment_and_that_before_the_file(self, file: Path) -> None:
        file.write_text('[gateway]\nstate_dir = "/file"\nport = 1\n')
        environment = {"BULKHEAD_CONFIG": str(file), "BULKHEAD_STATE_DIR": "/environment"}
        settings = read_settings(Flags(port=2), environment)
        assert (settings.gateway.state_dir, settings.gateway.port) == ("/environment", 2)
        settings = read_settings(Flags(state_dir=Path("/flag")), environment)
        assert (settings.gateway.state_dir, settings.gateway.port) == ("/flag", 1)

    def test_flags_of_one_reading_do_not_reach_the_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        assert read_settings(Flags(port=1, models=("demo",)), {}).models
        assert read_settings(Flags(), {}) == Settings()

    def test_all_mistakes_at_once(self, file: Path) -> None:
        mistakes = _mistakes(
            file,
            '[gateway]\nport = "x"\nnoise = 1\n'
            "[queue]\ndepth = 0\n[moon]\n[models.a]\npinned = 3\n",
        )
        keys = ("gateway.port", "gateway.noise", "queue.depth", "moon", "pinned", '"a".path')
        for key in keys:
            assert sum(key in mistake for mistake in mistakes) == 1, key
        assert len(mistakes) == len(keys)

    @pytest.mark.parametrize("text", ["gateway = 1", "models = 1", "[models]\na = 1", "x ="])
    def test_tables_that_are_none(self, file: Path, text: str) -> None:
        assert len(_mistakes(file, text, models=("demo",))) == 1

    def test_ids_and_aliases_that_collide(self, file: Path) -> None:
        model = '[models.a]\npath = "p"\n'
        assert '"a"' in _mistakes(file, model, models=("q=a",))[0]
        assert set(_read(file, model, models=("p=a",)).models) == {"a"}, "it is the same one"
        for name in (".", "a/.."):
            assert "no part of an id" in _mistakes(file, model.replace("a]", f'"{name}"]'))[0]
        text = model + 'aliases = ["b", "c"]\n[models.b]\npath = "p"\naliases = ["c"]\n'
        by_id, by_alias = _mistakes(file, text)
        assert '"b" is a model\'s id already' in by_id
        assert '"c" is an alias of "a" already' in by_alias

    @pytest.mark.parametrize("budget", ["much", "12XB", "0%", "101%", "", "0", "0.0GB"])
    def test_budgets_that_are_none(self, file: Path, budget: str) -> None:
        assert "memory.budget" in _mistakes(file, f'[memory]\nbudget = "{budget}"')[0]

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ('[gateway]\nstate_dir = "~nobody-at-all/s"', "gateway.state_dir: there is no home"),
            ('[models.a]\npath = "~nobody-at-all/m"', "There is no model folder ~nobody-at-all/m"),
            ('[models.a]\npath = "a\\u0000b"', "expected a model's folder"),
            ('[models.a]\npath = "demo"\npython = "\\u0000"', "expected an interpreter"),
        ],
    )
    def test_paths_that_no_system_has(self, file: Path, text: str, key: str) -> None:
        file.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(key)):
            read_configuration(Flags(config=file), {})

    def test_a_host_that_is_none_is_one_mistake(self, file: Path) -> None:
        """And isn't called exposed beside."""
        (mistake,) = _mistakes(file, '[gateway]\nhost = ""')
        assert "is not a name or an address" in mistake

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("allowed_hosts", "https://mac.example"),
            ("allowed_hosts", "mac.example:443"),
            ("allowed_hosts", "Mac.example"),
            ("allowed_hosts", "*"),
            ("allowed_origins", "chat.example"),
            ("allowed_origins", "https://chat.example/"),
            ("allowed_origins", "https://Chat.example"),
            ("allowed_origins", "https://*"),
            ("allowed_origins", "app://*.example"),
            ("allowed_origins", "*"),
        ],
    )
    def test_hosts_and_origins_that_no_browser_names(
        self, file: Path, key: str, value: str
    ) -> None:
        assert f"gateway.{key}: " in _mistakes(file, f'[gateway]\n{key} = ["{value}"]')[0]

    def test_models_that_are_not_there_or_not_allowed(
        self, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "empty").mkdir()
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        (tmp_path / "models--owner--name" / "snapshots").mkdir(parents=True)
        file.write_text(
            f"""
            gateway.allow = ["{tmp_path}", "owner/*"]
            models.nowhere.path = "/nowhere"
            models.demo.path = "demo"
            models.empty.path = "{tmp_path}/empty"
            models.partial.path = "owner/name"
            models.typed.path = 3
            """
        )
        with pytest.raises(ConfigError) as caught:
            read_configuration(Flags(config=file, models=("/none",)), {})
        assert [str(mistake.source) for mistake in caught.value.mistakes] == [
            "--model /none",
            *(f"{file}:{line}" for line in range(3, 8)),
        ]
        messages = [mistake.message for mistake in caught.value.mistakes]
        for message, part in zip(
            messages,
            (
                "no model folder /none",
                "no model folder /nowhere",
                "is not allowed",
                "holds no model",
                "without its revision main",
                "not 3",
            ),
            strict=True,
        ):
            assert part in message


class TestModels:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("demo", ("demo", "demo")),
            ("owner/name", ("name", "owner/name")),
            ("owner/name=id", ("id", "owner/name")),
            ("/a/größe eins", ("größe eins", "/a/größe eins")),
            ("/a/b=team/x", ("team/x", "/a/b")),
        ],
    )
    def test_flags(self, text: str, expected: tuple[str, str]) -> None:
        assert model_from_flag(text) == expected

    def test_a_folder_with_an_equals_sign(self, tmp_path: Path) -> None:
        folder = tmp_path / "a=b"
        folder.mkdir()
        assert model_from_flag(str(folder)) == ("a=b", str(folder))
        assert model_from_flag(f"{folder}=c") == ("c", str(folder))

    def test_places(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
        (tmp_path / "models--owner--name" / "snapshots").mkdir(parents=True)
        assert locate("demo") == str(DEMO_FOLDER)
        assert locate(str(tmp_path)) == str(tmp_path)
        assert locate("owner/name") == "owner/name"
        with pytest.raises(ValueError, match="bulkhead pull owner/other"):
            locate("owner/other")
        with pytest.raises(ValueError, match="no model folder"):
            locate("/nowhere/at/all")
        (tmp_path / "file").touch()
        with pytest.raises(ValueError, match="is a file"):
            locate(str(tmp_path / "file"))


class TestSizes:
    @pytest.mark.parametrize(
        ("text", "size"),
        [(12000, 12000), ("12GB", 12 * 10**9), ("1.5 GiB", 3 << 29), ("7", 7), ("2kb", 2000)],
    )
    def test_sizes(self, text: int | str, size: int) -> None:
        assert parse_size(text) == size

    def test_a_percentage_is_of_a_total(self) -> None:
        assert parse_size("75%", total_bytes=1000) == 750
        with pytest.raises(ValueError, match="not a size"):
            parse_size("75%")

    @pytest.mark.parametrize(
        ("size", "text"),
        [
            (0, "0 B"),
            (999, "999 B"),
            (1234, "1.2 kB"),
            (99_960_000, "100 MB"),
            (999_700_000, "1.0 GB"),
            (418_000_000, "418 MB"),
            (10**13, "10.0 TB"),
        ],
    )
    def test_formatting(self, size: int, text: str) -> None:
        assert format_size(size) == text


class TestOddThings:
    @pytest.mark.parametrize("text", ["9" * 400, "100000000000GB", "1" * 25])
    def test_sizes_that_no_machine_has(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"is not a size|more than any machine"):
            parse_size(text, 1)

    def test_a_context_beyond_counting(self, file: Path) -> None:
        (mistake,) = _mistakes(
            file, '[models.a]\npath = "demo"\ncontext_tokens = 100000000000000\n'
        )
        assert "context_tokens" in mistake

    @pytest.mark.parametrize("model_id", ["x" * 300, "ö" * 40])
    def test_ids_that_no_file_can_have(self, file: Path, model_id: str) -> None:
        (mistake,) = _mistakes(file, "", models=(f"demo={model_id}",))
        assert "an id has 1 to 200 characters" in mistake

    @pytest.mark.parametrize("name", ["a\\nb", "\\u001b[2J", "\\u2028"])
    def test_names_that_steer_a_terminal_or_end_a_line(self, file: Path, name: str) -> None:
        (mistake,) = _mistakes(file, f'[models."{name}"]\npath = "demo"\n')
        assert "an id is one line without control characters" in mistake
        (mistake,) = _mistakes(file, f'[models.a]\npath = "demo"\naliases = ["{name}"]\n')
        assert "an alias is one line without control characters" in mistake

    def test_an_empty_path(self) -> None:
        with pytest.raises(ValueError, match="It is empty"):
            locate("")

    def test_no_advice_to_download_a_folder(self) -> None:
        with pytest.raises(ValueError, match=r"^There is no model folder ./nosuch.$"):
            locate("./nosuch")

    def test_a_link_has_a_name_of_its_own(self, tmp_path: Path) -> None:
        link = tmp_path / "llama"
        link.symlink_to(DEMO_FOLDER)
        assert model_from_flag(str(link)) == ("llama", str(link))

    def test_variables_set_to_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        empty = {"BULKHEAD_CONFIG": "", "BULKHEAD_STATE_DIR": ""}
        assert read_settings(Flags(), empty) == read_settings(Flags(), {})


def test_an_interpreter_may_be_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert ModelSettings(path="demo").interpreter is None
    assert ModelSettings(path="demo", python="~/e/bin/python").interpreter == (
        "/home/somebody/e/bin/python"
    )


def test_memory_settings_have_ordinary_tokens_and_wiring(tmp_path: Path) -> None:
    path = tmp_path / "bulkhead.toml"
    path.write_text("[memory]\nordinary_tokens = 1000\nwire_weights = true\n")
    memory = read_settings(Flags(config=path), {}).memory
    assert (memory.ordinary_tokens, memory.wire_weights) == (1000, True)
    path.write_text("")
    memory = read_settings(Flags(config=path), {}).memory
    assert (memory.ordinary_tokens, memory.wire_weights) == (4096, False)
    path.write_text('[memory]\nordinary_tokens = 0\nwire_weights = "no"\n')
    with pytest.raises(ConfigError) as caught:
        read_settings(Flags(config=path), {})
    assert "ordinary_tokens" in str(caught.value)
    assert "wire_weights" in str(caught.value)
