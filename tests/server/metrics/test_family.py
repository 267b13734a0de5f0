"""Tests of `seedance_server.metrics.family`."""

import pytest

from seedance_server.distribution import Distribution
from seedance_server.metrics.family import Scrape


def test_scrape_makes_families_by_the_catalogue() -> None:
    """One family a metric, of the kind, with the labels and the help that stand there."""
    scrape = Scrape()
    scrape.put("tenant_requests", 3, "gold")
    scrape.put("tenant_requests", 4, "bronze")
    scrape.put_each("connections_refused", {})
    requests, refused = scrape.families
    assert (requests.name, requests.type) == ("seedance:tenant_requests", "gauge")
    assert [(each.labels["tenant"], each.value) for each in requests.samples] == [("gold", 3), ("bronze", 4)]
    assert (refused.name, refused.type, refused.samples) == ("seedance:connections_refused", "counter", [])


def test_scrape_takes_a_distribution_as_a_histogram() -> None:
    """Cumulative, with a last bucket that holds all."""
    scrape = Scrape()
    distribution = Distribution((0.5, 1.0))
    for value in (0.2, 0.7, 3.0):
        distribution.add(value)
    scrape.put_distribution("inter_token_latency_seconds", distribution)
    [family] = scrape.families
    found = {(each.name.rpartition("_")[2], each.labels.get("le")): each.value for each in family.samples}
    assert found == {
        ("bucket", "0.5"): 1,
        ("bucket", "1.0"): 2,
        ("bucket", "+Inf"): 3,
        ("count", None): 3,
        ("sum", None): pytest.approx(3.9),
    }


def test_scrape_knows_no_metric_that_the_catalogue_does_not() -> None:
    """A figure without an explanation is of no use to whoever is woken by it."""
    with pytest.raises(KeyError):
        Scrape().put("made_up", 1)
