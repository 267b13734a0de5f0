"""Reads metrics with Prometheus's own parser, without the worker thread that would let clocks jump."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families


def scrape(server):
    """Every sample by name and labels."""
    return samples(generate_latest(server.door.house.metrics.registry).decode())


def samples(text):
    """Of a text: values by name and sorted labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def value(read, name, **labels):
    """One of ours."""
    return read[f"seedance:{name}", *sorted(labels.items())]


def outcomes(read):
    """Requests by finished reason, canaries included, zeros left out."""
    counts = {}
    for (name, *labels), count in read.items():
        if name == "seedance:request_success_total" and count:
            reason = dict(labels)["finished_reason"]
            counts[reason] = counts.get(reason, 0) + count
    return counts
