"""Adapters, draft models, quantized caches and the prompts on disk, as an operator writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.layers import ConfigError
from gateway.config.model import Model, models_of
from gateway.config.model_folders import DEMO_FOLDER
from gateway.config.read import Configuration, Located, read_configuration, read_settings
from gateway.config.settings import Flags, Settings

MODEL = '[models.a]\npath = "demo"\n'


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name in ("adapter_config.json", "adapters.safetensors"):
        (folder / name).touch()
    return folder


def _read(tmp_path: Path, text: str) -> Configuration:
    file = tmp_path / "config.toml"
    file.write_text(text, "utf-8")
    return read_configuration(Flags(config=file), {})


def _mistake(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        _read(tmp_path, text)
    (mistake,) = raised.value.mistakes
    return str(mistake)


def _model(tmp_path: Path, keys: str) -> Model:
    (model,) = models_of(_read(tmp_path, MODEL + keys))
    return model


def test_adapter_and_draft_model_are_located(
    tmp_path: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = 'adapter = "~/adapter"\ndraft_model = "demo"\n'
    configuration = _read(tmp_path, MODEL + keys)
    assert configuration.located == {
        "a": Located(str(DEMO_FOLDER), str(adapter.resolve()), str(DEMO_FOLDER))
    }
    (model,) = models_of(configuration)
    assert (model.adapter, model.draft) == (str(adapter.resolve()), str(DEMO_FOLDER))


def test_a_draft_model_of_the_cache_is_the_folder_of_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--who--small"
    revision = repository / "snapshots" / "abc"
    revision.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (revision / "config.json").write_text("{}")
    model = _model(tmp_path, 'draft_model = "who/small"\n')
    assert model.draft == str(revision)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('adapter = "/nowhere"', 'models."a".adapter: There is no adapter\'s folder /nowhere.'),
        ('adapter = ""', 'models."a".adapter: There is no adapter\'s folder .'),
        ("adapter = 3", "expected an adapter's folder, not 3."),
        (f'adapter = "{DEMO_FOLDER}"', "holds no adapter: there is no adapter_config.json."),
        (
            'draft_model = "./nowhere"',
            'models."a".draft_model: There is no model folder ./nowhere.',
        ),
        ("kv_bits = 5", 'models."a".kv_bits: expected 4 or 8, not 5.'),
        ("kv_bits = true", "expected 4 or 8, not true."),
        ("kv_bits = 4.0", "expected 4 or 8, not 4.0."),
        ("draft_tokens = 0", "expected a whole number from 1 to 32, not 0."),
        ("pictures = 1", "expected true or false, not 1."),
        ('guesses = "no"', 'models."a".guesses: expected true or false, not "no".'),
        (
            'local = 2\ndraft_model = "demo"',
            'models."a".draft_model: a model that several processes compute (local, ranks) '
            "can't have this.",
        ),
        (
            'local = 2\nbackend = "jaccl"',
            'models."a".backend: "jaccl" joins machines by RDMA: every one of the ranks names its '
            "devices towards each of the others, in their order, as interfaces.",
        ),
        ('backend = "mpi"', 'expected "ring" or "jaccl" or "nccl", not "mpi".'),
        ("local = 0", "expected a whole number from 1 to 64, not 0."),
        (
            'pictures = true\ndraft_model = "demo"',
            'models."a".draft_model: a model with pictures = true can\'t have one.',
        ),
        (
            '[gateway]\nimage_folders = ["/", "b"]',
            'gateway.image_folders: "b" is not an absolute path.',
        ),
        (
            '[gateway]\nimage_folders = ["/", "/nowhere"]',
            "gateway.image_folders: There is no folder of pictures /nowhere.",
        ),
    ],
)
def test_wrong_value_is_reported(tmp_path: Path, keys: str, message: str) -> None:
    assert message in _mistake(tmp_path, MODEL + keys)


def test_weights_that_are_missing_from_an_adapter(tmp_path: Path, adapter: Path) -> None:
    (adapter / "adapters.safetensors").unlink()
    assert f"{adapter} holds no adapter: there is no adapters.safetensors." in _mistake(
        tmp_path, f'{MODEL}adapter = "{adapter}"'
    )


@pytest.mark.parametrize("key", ["adapter", "draft_model"])
def test_an_allow_list_is_for_them_too(tmp_path: Path, adapter: Path, key: str) -> None:
    elsewhere = adapter if key == "adapter" else tmp_path / "small"
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "config.json").touch()
    text = f'[gateway]\nallow = ["{DEMO_FOLDER}"]\n{MODEL}{key} = "{elsewhere}"\n'
    assert f"{elsewhere.resolve()} is not allowed" in _mistake(tmp_path, text)


def test_no_adapter_that_comes_later_gets_around_the_allow_list(tmp_path: Path) -> None:
    """A folder that is missing at the start is read as soon as it is there."""
    later = tmp_path / "later"
    text = f'[gateway]\nallow = ["{DEMO_FOLDER}"]\n{MODEL}adapter = "{later}"\n'
    assert f"{later} is not allowed" in _mistake(tmp_path, text)


@pytest.mark.parametrize(
    "keys",
    [
        "kv_bits = 8",
        "guesses = false",
        "pictures = true",
        'draft_model = "demo"',
        'adapter = "{adapter}"',
        "max_concurrency = 1",
        "local = 2",
        'split = "pipeline"',
        'backend = "ring"',
        # Any model may have a head of its own, which guesses without a draft model.
        "draft_tokens = 5",
    ],
)
def test_load_keys_need_another_worker(tmp_path: Path, adapter: Path, keys: str) -> None:
    plain = _model(tmp_path, "")
    other = _model(tmp_path, keys.format(adapter=adapter))
    assert not plain.same_for_workers(other)
    assert other.same_for_workers(_model(tmp_path, keys.format(adapter=adapter)))


def test_prompt_cache_has_bounds_of_disk(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[prompt_cache]\ndisk = "1GiB"\ndisk_writes_per_hour = 5000\n')
    cache = read_settings(Flags(config=file), {}).prompt_cache
    assert (cache.disk_bytes, cache.disk_writes_per_hour_bytes) == (1 << 30, 5000)
    cache = Settings().prompt_cache
    assert (cache.disk_bytes, cache.disk_writes_per_hour_bytes) == (20 * 10**9, 40 * 10**9)
    assert 'prompt_cache.disk: expected bytes, or a size as "2GB", not "50%".' in _mistake(
        tmp_path, '[prompt_cache]\ndisk = "50%"\n'
    )


def test_a_key_beside_the_tables_of_models(tmp_path: Path) -> None:
    """A list is the key; a table of that name is a model."""
    path = tmp_path / "config.toml"

    def read(text: str) -> Settings:
        path.write_text(text)
        return read_settings(Flags(config=path), {})

    assert read("").discovery.discover == ("huggingface",)
    listed = read('[models]\ndiscover = ["~/models"]\n[models.a]\npath = "demo"\n')
    assert (listed.discovery.discover, list(listed.models)) == (("~/models",), ["a"])
    named = read('[models.discover]\npath = "demo"\n')
    assert (named.discovery.discover, list(named.models)) == (("huggingface",), ["discover"])


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("[models]\ndiscover = true\n", 2, "models.discover"),
        ("[models]\ndiscover = [1]\n", 2, "models.discover"),
        ('[models]\ndiscover = [\n"huggingface",\n"models"]\n', 4, "models.discover"),
        ('[hub]\nendpoint = "huggingface.co"\n', 2, "hub.endpoint"),
        ('[hub]\nendpoint = "https://user:key@hub.example"\n', 2, "hub.endpoint"),
        ('[hub]\nfolder = "models"\n', 2, "hub.folder"),
    ],
)
def test_mistakes_about_where_models_come_from(
    tmp_path: Path, text: str, line: int, key: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_settings(Flags(config=path), {})
    (mistake,) = raised.value.mistakes
    assert (mistake.source.line, mistake.key.replace('"', "")) == (line, key)


@pytest.mark.parametrize(
    ("keys", "line", "key"),
    [
        ("defaults = { temprature = 0.2 }\n", 3, "defaults.temprature"),
        ("defaults = { top_p = 0.9, temperature = 3 }\n", 3, "defaults.temperature"),
        ("system = 'Hi'\n[models.a.defaults]\ntop_p = 0.9\ntop_k = 1.5\n", 6, "defaults.top_k"),
        ("defaults = { temperature = true }\n", 3, "defaults.temperature"),
        ("defaults = 0.2\n", 3, "defaults"),
        ("system = 5\n", 3, "system"),
    ],
)
def test_value_out_of_bounds_is_reported_with_place(
    tmp_path: Path, keys: str, line: int, key: str
) -> None:
    message = _mistake(tmp_path, MODEL + keys)
    assert f'config.toml:{line}: models."a".{key}: expected ' in message


def test_each_wrong_parameter_is_named(tmp_path: Path) -> None:
    keys = 'defaults = { temperature = "hot", top_p = -1, temprature = 1 }\n'
    with pytest.raises(ConfigError) as raised:
        _read(tmp_path, MODEL + keys)
    message = str(raised.value)
    table = 'models."a".defaults'
    assert f'{table}.temperature: expected a number, 0 to 2, not "hot".' in message
    assert f"{table}.top_p: expected a number, 0 to 1, not -1." in message
    assert f"{table}.temprature: expected one of temperature, top_p, " in message


def test_a_model_has_a_system_prompt_and_parameters(tmp_path: Path) -> None:
    keys = 'system = """\nBe brief.\nBe kind.\n"""\ndefaults = { temperature = 0, top_k = 5 }\n'
    settings = _model(tmp_path, keys).settings
    assert settings.system == "Be brief.\nBe kind.\n"
    assert settings.defaults.given == {"temperature": 0.0, "top_k": 5}
    assert str(settings.defaults) == "temperature 0, top_k 5"
    plain = _model(tmp_path, "")
    assert plain.same_for_workers(_model(tmp_path, keys))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('[models.w]\ncommand = ["w", "{port}"]\n', "only a model with a path has this key"),
        ('[upstreams.box]\nurl = "http://box/v1"\n', "unknown here; it is a key of [models.ID]"),
    ],
)
@pytest.mark.parametrize("key", ['system = "Hi"', "defaults = { top_k = 5 }"])
def test_other_servers_have_their_own(tmp_path: Path, table: str, message: str, key: str) -> None:
    assert message in _mistake(tmp_path, f"{table}{key}\n")
