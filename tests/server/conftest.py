"""Log lines of the server's tests go nowhere: rendering tracebacks prettily would take most of the time."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def silent_logs() -> Iterator[None]:
    structlog.configure(processors=[_drop])
    yield
    structlog.reset_defaults()


def _drop(_logger: object, _method: str, _event: object) -> dict[str, object]:
    raise structlog.DropEvent
