"""Tests of `seedance_server.delivery_settings`."""

import attrs

from seedance_server.config import Config
from seedance_server.delivery_settings import DeliverySettings


def test_delivery_settings_stand_together() -> None:
    """``--help`` shows them under one heading, in their own order."""
    names = [field.name for field in attrs.fields(DeliverySettings)]
    among = [field.name for field in attrs.fields(Config)]
    first = among.index("durability")
    assert among[first : first + len(names)] == names
    assert {field.metadata["setting"].group for field in attrs.fields(DeliverySettings)} == {
        "reliable delivery"
    }


def test_what_is_kept_is_bounded_in_time_and_size() -> None:
    """Nothing that clients leave behind is kept for ever by default."""
    defaults = {field.name: field.default for field in attrs.fields(DeliverySettings)}
    for name in ("retention_s", "idempotency_s", "resume_window_s", "journal_quota_bytes"):
        assert defaults[name] > 0
