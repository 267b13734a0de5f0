"""Tests of `seedance_server.service_settings`."""

import attrs

from seedance_server.config import Config
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
