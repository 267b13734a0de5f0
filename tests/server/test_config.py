"""Tests of `seedance_server.config`."""

import attrs
import pytest

from seedance_server.config import Config
from seedance_server.errors import ConfigError


def test_config_refuses_an_open_server_without_a_key() -> None:
    """Beyond loopback there must be a key, or everybody could use the server."""
    with pytest.raises(ConfigError, match=r"--api-key or --keys is needed to listen on 0\.0\.0\.0"):
        Config(model_path="m", host="0.0.0.0")
    assert Config(model_path="m", host="0.0.0.0", api_key="k" * 16).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("port", 65536, "--port"),
        ("port", -1, "--port"),
        ("max_connections", 0, "--max-conns"),
        ("send_timeout_s", float("nan"), "--send-timeout"),
        ("send_timeout_s", float("inf"), "--send-timeout"),
        ("dtype", "int3", "--dtype"),
        ("api_key", "short", "--api-key"),
        ("stream_buffer_outputs", 3, "--stream-buffer"),
        ("max_attempts", 1, "--max-attempts"),
        ("batch_bytes", 1 << 30, "--batch"),
        ("threads", 0, "--threads"),
        ("reconnect_to", "https://a", "--reconnect-to"),
        ("reconnect_to", "wss://a b", "--reconnect-to"),
    ],
)
def test_config_names_the_setting_that_cannot_be_used(name: str, value: object, flag: str) -> None:
    """A Config that exists is usable; what isn't is refused by the name that the operator typed."""
    with pytest.raises(ConfigError) as caught:
        Config(model_path="m", **{name: value})
    assert caught.value.setting == flag


def test_config_takes_zero_where_the_help_gives_it_a_meaning() -> None:
    """What can be turned off by a flag is turned off by the number that its help names."""
    names = [field.name for field in attrs.fields(Config) if ", 0 for none" in field.metadata["setting"].help]
    assert "speculative_tokens" in names
    for name in names:
        assert getattr(Config(model_path="m", **{name: 0}), name) == 0


def test_config_never_shows_the_key() -> None:
    """A key doesn't end up in a log by way of a repr."""
    assert "k" * 16 not in repr(Config(model_path="m", api_key="k" * 16))


def test_every_setting_explains_itself() -> None:
    """Each limit carries its reason where it is defined."""
    for field in attrs.fields(Config):
        assert len(field.metadata["setting"].help) > 15, field.name
