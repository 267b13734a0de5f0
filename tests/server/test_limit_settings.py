"""Tests of `seedance_server.limit_settings`."""

import attrs

from seedance_server.config import Config
from seedance_server.limit_settings import LimitSettings


def test_limit_settings_stand_together() -> None:
    """``--help`` shows them under one heading, in their own order."""
    names = [field.name for field in attrs.fields(LimitSettings)]
    among = [field.name for field in attrs.fields(Config)]
    first = among.index("max_connections")
    assert among[first : first + len(names)] == names
    assert {field.metadata["setting"].group for field in attrs.fields(LimitSettings)} == {"limits"}


def test_every_limit_has_a_default_that_limits() -> None:
    """A limit that isn't set is still one."""
    for field in attrs.fields(LimitSettings):
        assert field.default is not None, field.name
