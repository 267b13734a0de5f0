"""What the fairness benchmark makes of what its clients saw."""

import math

import pytest

from fairness import Tenant, picture, shares, table


def tenants() -> list[Tenant]:
    return [
        Tenant("gold", "k", arrivals=[(float(at_s), 6) for at_s in range(100)]),
        Tenant("silver", "k", arrivals=[(float(at_s), 4) for at_s in range(100)]),
        Tenant("bronze", "k", arrivals=[(float(at_s), 1) for at_s in range(100)], firsts_s=[0.5, 1.5]),
    ]


def test_shares_are_of_the_time_that_counts_and_beside_what_is_due() -> None:
    """Tokens before and after don't count; the deviation is from the tenant's own due."""
    gold, silver, bronze = shares(tenants(), 10, 20)
    assert [row["tokens"] for row in (gold, silver, bronze)] == [60, 40, 10]
    assert gold["due"] == pytest.approx(1 / 2)
    assert gold["share"] == pytest.approx(60 / 110)
    assert bronze["deviation"] == pytest.approx(10 / 110 * 6 - 1)
    assert bronze["tokens_per_s"] == 1
    assert bronze["ttft_ms"] == {"p50": 500.0, "p95": 1500.0, "p100": 1500.0}


def test_shares_of_nothing_are_not_a_number() -> None:
    """A run in which nothing came isn't within any tolerance."""
    rows = shares([Tenant(name, "k") for name in ("gold", "silver", "bronze")], 0, 1)
    assert all(math.isnan(row["deviation"]) for row in rows)
    assert rows[0]["ttft_ms"]["p50"] is None


def test_table_and_picture_show_every_tenant() -> None:
    """Whoever looks sees the weight, what was due and what came."""
    smallest = {
        "requests": 2,
        "ttft_ms": {"p50": 1.0, "p95": 2.0, "p100": None},
        "itl_ms": {"p50": 1.0, "p95": 2.0},
    }
    over_time = {name: [[0.0, 0.5], [1.0, 0.6]] for name in ("gold", "silver", "bronze")}
    record = {
        "in_flight": 12,
        "rows": 6,
        "saturated": {"shares": shares(tenants(), 10, 20), "share_over_time": over_time},
        "polite": {"smallest": smallest},
        "alone": {"smallest": smallest},
    }
    text, drawing = table(record), picture(record)
    for name, due in (("gold", "50"), ("silver", "33"), ("bronze", "17")):
        assert name in text
        assert f"{name} (due {due}%)" in drawing
    assert drawing.startswith("<svg")
