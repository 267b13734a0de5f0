"""Tests of `seedance_server.tenants`."""

import tomllib

import pytest

from seedance_server.tenants import Priority, Rate, Tenant, read_tenant


def test_tenant_without_settings_has_no_limit_of_its_own() -> None:
    """Whatever isn't written is the server's."""
    assert read_tenant("acme", {}) == Tenant(name="acme")


def test_tenant_reads_every_setting() -> None:
    """As TOML gives them."""
    table = tomllib.loads("""
        weight = 3
        priority = "high"
        max_connections = 4
        max_streams = 8
        tokens_per_minute = 60000
        bytes_per_second = { base = 100, min = 50, max = 400 }
        journal_bytes = 1_000_000
        events_per_minute = 600
    """)
    tenant = read_tenant("acme", table)
    assert tenant == Tenant(
        name="acme",
        weight=3.0,
        priority=Priority.HIGH,
        max_connections=4,
        max_streams=8,
        tokens_per_minute=Rate(60_000, 60_000, 90_000),
        bytes_per_second=Rate(100, 50, 400),
        journal_bytes=1_000_000,
        events_per_minute=Rate(600, 600, 900),
    )
    assert Priority.HIGH.rank > Priority.NORMAL.rank > Priority.LOW.rank


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("weight", 0),
        ("weight", -1),
        ("weight", float("nan")),
        ("weight", float("inf")),
        ("weight", True),
        ("weight", "3"),
        ("priority", "urgent"),
        ("priority", 1),
        ("max_connections", 0),
        ("max_connections", 1.5),
        ("max_streams", True),
        ("max_streams", 2**63),
        ("tokens_per_minute", 0),
        ("tokens_per_minute", float("nan")),
        ("tokens_per_minute", {}),
        ("tokens_per_minute", {"base": 1, "burst": 2}),
        ("tokens_per_minute", {"base": 1, "min": 3, "max": 2}),
        ("bytes_per_second", {"base": 1, "min": "0"}),
        ("bytes_per_second", [1]),
        ("journal_bytes", -5),
        ("burst", 3),
    ],
)
def test_tenant_with_a_bad_setting_is_refused_in_one_line_that_names_it(setting: str, value: object) -> None:
    """A typing mistake never becomes a limit."""
    with pytest.raises(ValueError, match=rf"tenant acme: .*{setting}") as caught:
        read_tenant("acme", {setting: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", ".", "-a", "a b", "a\n", "a/b", "x" * 65, "ä"])
def test_tenant_has_a_name_that_is_safe_everywhere(name: str) -> None:
    """It stands in log lines, rows and tables."""
    with pytest.raises(ValueError, match="a name has"):
        read_tenant(name, {})
