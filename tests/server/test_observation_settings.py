"""Tests of `seedance_server.observation_settings`."""

import attrs
import pytest

from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.observation_settings import ObservationSettings


def test_observation_settings_stand_together() -> None:
    """``--help`` shows them under one heading, in their own order."""
    names = [field.name for field in attrs.fields(ObservationSettings)]
    among = [field.name for field in attrs.fields(Config)]
    first = among.index(names[0])
    assert among[first : first + len(names)] == names
    groups = {field.metadata["setting"].group for field in attrs.fields(ObservationSettings)}
    assert groups == {"observation"}


def test_metrics_key_is_secret_and_long_enough_to_be_one() -> None:
    """It is what keeps the figures of all tenants from each of them."""
    assert attrs.fields(ObservationSettings).metrics_key.metadata["setting"].secret
    with pytest.raises(ConfigError, match="--metrics-key must have at least 16 characters"):
        Config(model_path="m", metrics_key="short")
    assert Config(model_path="m", metrics_key="k" * 16, metrics_tenants=0).metrics_tenants == 0


@pytest.mark.parametrize("url", ["collector:4318", "ws://collector", "http://"])
def test_collector_is_a_url_of_http(url: str) -> None:
    """A mistake is told at start, not by spans that never come."""
    with pytest.raises(ConfigError, match="--otlp-endpoint must be an http:// or https:// URL"):
        Config(model_path="m", otlp_endpoint=url)
    assert Config(model_path="m", otlp_endpoint="http://127.0.0.1:4318").otlp_endpoint
