from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from agentserve.daemon import launch
from agentserve.daemon.config import OPTIONS, Settings, load_settings, to_arguments
from agentserve.daemon.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_defaults_need_no_source(tmp_path: Path) -> None:
    settings = load_settings({}, {}, tmp_path / "missing.toml")
    assert settings == Settings()
    assert (settings.host, settings.port, settings.model) == ("127.0.0.1", 11435, "smollm2")
    assert settings.source("port") == "default"


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'port = 1\nthreads = 1\nmodel = "a"\n')
    environ = {"AGENTSERVE_PORT": "2", "AGENTSERVE_THREADS": "2"}
    settings = load_settings({"port": 3, "threads": None}, environ, file)
    assert (settings.port, settings.threads, settings.model) == (3, 2, "a")
    sources = [settings.source(name) for name in ("port", "threads", "model", "host")]
    assert sources == ["flag", "environment", "file", "default"]


@pytest.mark.parametrize("text", ["1", "true", "YES", "on", "True"])
def test_four_words_switch_on(text: str) -> None:
    assert load_settings({}, {"AGENTSERVE_MOCK": text}).mock is True


@pytest.mark.parametrize("text", ["0", "false", "NO", "off"])
def test_four_words_switch_off(text: str) -> None:
    assert load_settings({}, {"AGENTSERVE_MOCK": text}).mock is False


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("512MiB", 512 * 2**20), ("1.5 gib", 3 * 2**29), ("1000", 1000), ("2kB", 2000)],
)
def test_sizes_have_decimal_and_binary_units(text: str, size: int) -> None:
    assert load_settings({"kv_budget": text}, {}).kv_budget == size


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("port", "abc", "expected a whole number"),
        ("port", "65536", "expected 0 to 65535"),
        ("port", "-1", "expected 0 to 65535"),
        ("mock", "maybe", "expected 1/true/yes/on or 0/false/no/off"),
        ("kv_budget", "4 XB", "expected bytes or a size such as 4GB or 512MiB"),
        ("max_body", "0", "expected at least 1"),
        ("log_level", "loud", "expected one of debug, info, warning, error"),
        ("load_timeout", "nan", "expected a number"),
        ("load_timeout", "0", "expected 1 to 3600"),
        ("device", "my gpu", "expected a device such as CPU or GPU.1"),
        ("model", "  ", "expected a text that is not empty"),
        ("max_loaded_models", "0", "expected 1 to 64"),
    ],
)
def test_a_bad_value_names_source_value_and_what_was_expected(name: str, value: str, expected: str) -> None:
    variable = f"AGENTSERVE_{name.upper()}"
    with pytest.raises(ConfigError) as caught:
        load_settings({}, {variable: value})
    assert str(caught.value) == f"{variable}: {value!r} is wrong: {expected}"
    assert caught.value.exit_code == 2


def test_a_bad_flag_is_named_as_it_was_typed() -> None:
    with pytest.raises(ConfigError, match=r"^--max-context: '1k' is wrong: expected a whole number$"):
        load_settings({"max_context": "1k"}, {})


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_one(tmp_path: Path) -> None:
    file = write(tmp_path, "max-qeue-depth = 3\n")
    with pytest.raises(ConfigError, match=r"unknown key 'max-qeue-depth'; did you mean 'max_queue_depth'\?"):
        load_settings({}, {}, file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = ", "not valid TOML"),
        ("port = true", "port: True is wrong: expected a whole number"),
        ("host = 3", "host: 3 is wrong: expected a text"),
        ('aliases = "x"', "aliases: 'x' is wrong: expected a table of texts"),
        ("allowed_hosts = 3", "allowed_hosts: 3 is wrong: expected a list of texts"),
    ],
)
def test_a_bad_file_is_refused_by_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings({}, {}, write(tmp_path, text))


def test_the_file_takes_lists_tables_and_sizes(tmp_path: Path) -> None:
    text = 'allowed_hosts = ["box", "box:80"]\nkv_budget = "1GiB"\n[aliases]\n"gpt-5-mini" = "smollm2"\n'
    settings = load_settings({}, {}, write(tmp_path, text))
    assert settings.allowed_hosts == ("box", "box:80")
    assert settings.kv_budget == 2**30
    assert settings.aliases == {"gpt-5-mini": "smollm2"}


def test_formats_are_chosen_by_model_and_checked(tmp_path: Path) -> None:
    text = '[tool_formats]\nsmollm2 = "Hermes"\n[reasoning_formats]\n"my-model:7b" = "none"\n'
    settings = load_settings({}, {}, write(tmp_path, text))
    assert settings.tool_formats == {"smollm2": "hermes"}
    assert settings.reasoning_formats == {"my-model:7b": "none"}
    with pytest.raises(
        ConfigError, match=r"tool_formats: .* is wrong: expected one of auto, none, harmony, "
    ):
        load_settings({}, {}, write(tmp_path, '[tool_formats]\nsmollm2 = "xml"\n'))


def test_aliases_have_no_environment_variable() -> None:
    assert load_settings({}, {"AGENTSERVE_ALIASES": "x"}).aliases == {}


def test_an_empty_environment_variable_is_not_given() -> None:
    assert load_settings({}, {"AGENTSERVE_PORT": ""}).port == 11435


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "box.example"])
def test_a_host_that_others_reach_needs_a_switch(host: str) -> None:
    with pytest.raises(ConfigError, match="add --listen-all"):
        load_settings({"host": host}, {})
    assert load_settings({"host": host, "listen_all": True}, {}).host == host


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_hosts_need_no_switch(host: str) -> None:
    assert load_settings({"host": host}, {}).host == host


def test_settings_can_not_be_written() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]


def test_flags_survive_the_way_through_the_daemons_command_line() -> None:
    flags: dict[str, Any] = {
        "port": 0,
        "mock": True,
        "exact": False,
        "allowed_hosts": ("a", "b"),
        "model": None,
    }
    parser = argparse.ArgumentParser()
    for option in OPTIONS:
        launch._add_option(parser, option)
    given = vars(parser.parse_args(to_arguments(flags)))
    assert load_settings(given, {}) == Settings(port=0, mock=True, exact=False, allowed_hosts=("a", "b"))


def test_every_option_explains_itself() -> None:
    assert all(option.help.endswith(".") for option in OPTIONS)
    assert len({option.name for option in OPTIONS}) == len(OPTIONS)
