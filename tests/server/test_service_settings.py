"""Tests of `seedance_server.service_settings`."""

import attrs
import pytest

from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.given_settings import read_config
from seedance_server.service_settings import ServiceSettings


def test_service_settings_stand_together() -> None:
    """``--help`` shows them under one heading, in their own order."""
    names = [field.name for field in attrs.fields(ServiceSettings)]
    among = [field.name for field in attrs.fields(Config)]
    first = among.index("host")
    assert among[first : first + len(names)] == names
    assert {field.metadata["setting"].group for field in attrs.fields(ServiceSettings)} == {"service"}


def test_the_key_is_secret() -> None:
    """Whatever shows settings can tell which not to show."""
    assert attrs.fields(ServiceSettings).api_key.metadata["setting"].secret


@pytest.mark.parametrize(
    "origin",
    ["https://chat.example", "http://127.0.0.1:3000", "http://[::1]:8080", "app://local", "null"],
)
def test_origin_is_taken_as_browsers_send_it(origin: str) -> None:
    """Word for word, since that is how it is compared."""
    assert read_config(["--model-path", "m", "--allow-origin", origin], {}).allow_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        "chat.example",
        "*",
        "",
        "https://chat.example/",
        "https://Chat.example",
        "https://chat.example:443",
        "http://chat.example:80",
        "https://me@chat.example",
        "https://chat.example:port",
        "https://chat.example?x",
        "https://",
        "https://chat.example,https://other.example",
    ],
)
def test_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    """It would let nobody in, and nobody would know why."""
    with pytest.raises(ConfigError, match=r"--allow-origin must be an origin such as https://chat\.example"):
        read_config(["--model-path", "m", "--allow-origin", origin], {})
