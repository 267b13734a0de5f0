"""Tests of `seedance_server.event_sinks`."""

from pathlib import Path

import pytest

from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.event_file import EventFile
from seedance_server.event_sinks import make_sinks

COUNTER = "tests.server.test_event_sinks:Counter"


class Counter:
    """A sink of an operator's."""

    name = "counter"

    async def run(self, feed: object) -> None:
        raise AssertionError("it is only made here")


class Impostor(Counter):
    """One that takes a name that is taken."""

    name = "file"


def test_sinks_are_those_of_the_configuration(tmp_path: Path) -> None:
    """None unless asked for: then reports are refused and nothing piles up."""
    assert make_sinks(Config(model_path="m")) == ()
    config = Config(
        model_path="m",
        events_path=tmp_path / "events",
        event_sinks=(COUNTER,),
    )
    file, counter = make_sinks(config)
    assert isinstance(file, EventFile)
    assert counter.name == "counter"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"events_path": Path("/no/such/directory/events")}, "--events must be a file"),
        ({"events_path": Path("/")}, "--events must be a file"),
        ({"event_sinks": ("no.such.module:Sink",)}, "--event-sink no.such.module:Sink can't be made"),
        ({"event_sinks": ("tests.server.test_event_sinks",)}, "--event-sink must be MODULE:NAME"),
        ({"event_sinks": (":make",)}, "--event-sink must be MODULE:NAME"),
        ({"event_sinks": ("sinks:",)}, "--event-sink must be MODULE:NAME"),
        ({"event_sinks": ("tests.server.test_event_sinks:Nothing",)}, "can't be made"),
        ({"event_sinks": ("builtins:dict",)}, "makes no sink"),
        ({"event_sinks": (COUNTER,) * 2}, "names that differ"),
    ],
)
def test_sinks_that_cannot_be_made_are_said_at_the_start(settings: dict[str, object], words: str) -> None:
    """In one line that names the flag, before a model is loaded."""
    with pytest.raises(ConfigError, match=words) as caught:
        make_sinks(Config(model_path="m", **settings))
    assert "\n" not in str(caught.value)


def test_sink_of_an_operator_may_not_take_the_name_of_the_file(tmp_path: Path) -> None:
    """Two sinks under one name would share a place in the journal, and each lose what the other took."""
    config = Config(
        model_path="m", events_path=tmp_path / "e", event_sinks=("tests.server.test_event_sinks:Impostor",)
    )
    with pytest.raises(ConfigError, match="names that differ"):
        make_sinks(config)
