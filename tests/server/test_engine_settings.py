"""Tests of `seedance_server.engine_settings`."""

import attrs

from seedance_server.config import Config
from seedance_server.engine_settings import EngineSettings


def test_engine_settings_stand_first_and_together() -> None:
    """``--help`` begins with what is served; every one of them is in one group and part of the whole."""
    names = [field.name for field in attrs.fields(EngineSettings)]
    assert [field.name for field in attrs.fields(Config)][: len(names)] == names
    groups = {field.metadata["setting"].group for field in attrs.fields(EngineSettings)}
    assert groups == {"model and engine"}
    assert names[0] == "model_path"
