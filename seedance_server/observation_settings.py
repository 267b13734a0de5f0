"""The part of the settings that is about being watched: who may read figures, and where traces go.

`config.py` puts the parts together, and checks all. It must not know where a value came from.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from seedance_server.setting import setting_field

__all__ = ["ObservationSettings"]


def _observation(default: Any, flag: str, metavar: str, help_text: str, **more: Any) -> Any:
    return setting_field(default, flag, metavar, help_text, group="observation", **more)


@frozen(kw_only=True, slots=False)
class ObservationSettings:
    """What is told about the server; the texts beside the fields are what ``--help`` prints."""

    metrics_key: str | None = _observation(
        None,
        "--metrics-key",
        "KEY",
        "key that /metrics asks for, as Authorization: Bearer (default: none, for a network that is trusted)",
        secret=True,
    )
    metrics_tenants: int = _observation(
        32,
        "--metrics-tenants",
        "N",
        "tenants with series of their own in /metrics; the others' are one, since whoever stores them pays",
    )
    otlp_endpoint: str | None = _observation(
        None,
        "--otlp-endpoint",
        "URL",
        "collector that gets a span for each request, by OTLP over HTTP, e.g. http://127.0.0.1:4318; "
        "needs seedance-server[otel]",
    )
