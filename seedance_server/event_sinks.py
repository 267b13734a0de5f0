"""Which sinks a configuration asks for: the file, and whatever an operator brings.

It must not know how sinks are served.
"""

from __future__ import annotations

from importlib import import_module

from seedance_server.config import Config
from seedance_server.errors import ConfigError
from seedance_server.event_file import EventFile
from seedance_server.event_sink import EventSink

__all__ = ["make_sinks"]


def make_sinks(config: Config) -> tuple[EventSink, ...]:
    """The sinks of a configuration; none if it names none.

    Raises:
        ConfigError: One can't be made, or two have one name.
    """
    sinks: list[EventSink] = []
    if config.events_path is not None:
        if not config.events_path.parent.is_dir() or config.events_path.is_dir():
            reason = f"must be a file in a directory that exists, not {config.events_path}"
            raise ConfigError("--events", reason)
        sinks.append(EventFile(config.events_path, config.events_rotate_bytes))
    sinks += map(_load, config.event_sinks)
    names = [sink.name for sink in sinks]
    if len(set(names)) < len(names):
        raise ConfigError("--event-sink", f"must bring names that differ, not {', '.join(names)}")
    return tuple(sinks)


def _load(path: str) -> EventSink:
    module_name, _, name = path.partition(":")
    if not (module_name and name):
        raise ConfigError("--event-sink", f"must be MODULE:NAME such as mypackage.sinks:make, not {path!r}")
    try:
        sink: EventSink = getattr(import_module(module_name), name)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError("--event-sink", f"{path} can't be made: {error}") from error
    if not (isinstance(getattr(sink, "name", None), str) and callable(getattr(sink, "run", None))):
        raise ConfigError("--event-sink", f"{path} makes no sink: it needs a name and run(feed)")
    return sink
