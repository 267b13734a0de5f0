"""Tests of `seedance_server.config`."""

import attrs
import pytest

from seedance_server.config import Config, is_loopback
from seedance_server.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.1", False),
        ("example.com", False),
        ("", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, answer: bool) -> None:
    """Names but localhost may resolve to anything, so they don't count."""
    assert is_loopback(host) is answer


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
        ("batch_bytes", 1 << 30, "--batch"),
        ("threads", 0, "--threads"),
    ],
)
def test_config_names_the_setting_that_cannot_be_used(name: str, value: object, flag: str) -> None:
    """A Config that exists is usable; what isn't is refused by the name that the operator typed."""
    with pytest.raises(ConfigError) as caught:
        Config(model_path="m", **{name: value})
    assert caught.value.setting == flag


def test_config_never_shows_the_key() -> None:
    """A key doesn't end up in a log by way of a repr."""
    assert "k" * 16 not in repr(Config(model_path="m", api_key="k" * 16))


def test_every_setting_explains_itself() -> None:
    """Each limit carries its reason where it is defined."""
    for field in attrs.fields(Config):
        assert len(field.metadata["setting"].help) > 15, field.name
