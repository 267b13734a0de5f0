"""The latency figures for OpenTelemetry; needs ``pip install seedance-sdk[otel]``.

    from opentelemetry.metrics import get_meter
    from seedance_sdk.opentelemetry import observe

    observe(client.latency, get_meter("my-program"))

Sums up when a reader collects and costs nothing between. Importing `seedance_sdk` does not import this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from seedance_sdk.latency import LatencyObservatory
from seedance_sdk.latency_metrics import counts_of, quantiles_of, times_of

__all__ = ["observe"]


def observe(observatory: LatencyObservatory, meter: Meter) -> None:
    """Makes instruments ``seedance.client.…`` that read the observatory whenever they are asked.

    Quantiles are gauges in seconds with an attribute ``quantile``; counts are counters. All have an attribute
    ``endpoint``, and those of answers ``canary``.

    Args:
        observatory: A client's ``latency``.
        meter: Of the program's meter provider.
    """
    blank = LatencyObservatory()  # names and meanings are the same whatever was observed
    blank.endpoint("")
    report = blank.report()
    for name, meaning in {times.name: times.meaning for times in times_of(report)}.items():
        meter.create_observable_gauge(
            f"seedance.client.{name}", [_quantiles(observatory, name)], unit="s", description=meaning
        )
    for name, meaning in {count.name: count.meaning for count in counts_of(report)}.items():
        meter.create_observable_counter(
            f"seedance.client.{name}", [_counts(observatory, name)], description=meaning
        )


def _quantiles(
    observatory: LatencyObservatory, name: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        for times in times_of(observatory.report()):
            for share, seconds in quantiles_of(times.distribution) if times.name == name else ():
                yield Observation(seconds, {**times.labels, "quantile": str(share)})

    return read


def _counts(observatory: LatencyObservatory, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        for count in counts_of(observatory.report()):
            if count.name == name:
                yield Observation(count.value, dict(count.labels))

    return read
