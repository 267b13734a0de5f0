"""The parts of PROTOCOL.md that are made from the code and the schema: states, close codes, limits, fields.

`python wire/specification.py` writes them into the page; a test compares. Each stands between two comments of
its name, everything outside of those is written by hand. Must not hold a fact of its own: it only shows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seedance_wire import envelope, event_delta, received_streams, rules, window
from seedance_wire.closing import CLOSE_RULES
from seedance_wire.connection import MAX_MESSAGE_BYTES
from seedance_wire.rules import (
    CLIENT_KINDS,
    CONNECTION_TABLE,
    CROSSINGS,
    SERVER_KINDS,
    STREAM_TABLE,
    ConnectionState,
    StreamState,
)

__all__ = ["PAGE", "SCHEMA", "SECTIONS", "main", "rewritten"]

HOME = Path(__file__).parent
PAGE = HOME / "PROTOCOL.md"
SCHEMA = HOME / "seedance.proto"

_MARKED = re.compile(r"(<!-- begin ([a-z ]+)[^\n]*-->\n)(.*?)(<!-- end \2 -->)", re.DOTALL)
_MESSAGE = re.compile(r"(message|enum) (\w+) \{")
_FIELD = re.compile(r"(?P<type>[\w ]+(?:<[^>]+>)?) (?P<name>\w+) = (?P<number>\d+);\s*// (?P<about>.*)")
_VALUE = re.compile(r"(?P<name>[A-Z_]+) = (?P<number>\d+);\s*// (?P<about>.*)")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += (f"| {' | '.join(row)} |" for row in rows)
    return re.sub(r"\|  (?=\|)", "| ", "\n".join(lines))


def _transitions(
    states: Iterable[ConnectionState] | Iterable[StreamState],
    table: Mapping[Any, ConnectionState | StreamState],
    crossings: Mapping[Any, ConnectionState | StreamState],
) -> str:
    """A row for each message, a column for each state that knows one, in the cells the next state."""
    columns = [state for state in states if any(state is before for before, _ in table)]

    def rows() -> Iterator[Sequence[str]]:
        for speaker, kinds in (("client", CLIENT_KINDS), ("server", SERVER_KINDS)):
            for kind in kinds:
                cells = [table.get((state, kind)) or crossings.get((state, kind)) for state in columns]
                names = ["" if cell is None else cell.value for cell in cells]
                crossed = [(state, kind) in crossings for state in columns]
                if any(names):
                    shown = (f"({name})" if late else name for name, late in zip(names, crossed, strict=True))
                    yield (speaker, kind.__name__, *shown)

    return _table(("from", "message", *(state.value for state in columns)), rows())


def _connection_table() -> str:
    return _transitions(ConnectionState, CONNECTION_TABLE, CROSSINGS)


def _stream_table() -> str:
    return _transitions(StreamState, STREAM_TABLE, {})


def _close_codes() -> str:
    rows = (
        (
            str(code.value),
            rule.meaning,
            rule.speaker.value,
            rule.advice.value,
            "yes" if rule.is_failure else "",
        )
        for code, rule in CLOSE_RULES.items()
    )
    return _table(("code", "meaning", "closed by", "the client's part", "speaks against the server"), rows)


def _limits() -> str:
    close, refuse, flood = "close with 4400", "REFUSED, by the name of the list", "close with 4429"
    frames = f"{window.INITIAL_FRAMES} at first, then {window.MINIMUM_FRAMES} to {window.MAXIMUM_FRAMES}"
    rows: tuple[tuple[str, int | str, str], ...] = (
        ("bytes of a message, until WELCOME says otherwise", MAX_MESSAGE_BYTES, "close with 1009"),
        ("frames in an envelope", envelope.MAX_FRAMES, close),
        ("entries of an ACK", envelope.MAX_ACK_ENTRIES, close),
        ("streams in a CHECKPOINT", envelope.MAX_CHECKPOINT_ENTRIES, close),
        ("`capabilities`", envelope.MAX_LIST_ENTRIES, close),
        (
            "turns, text parts of a turn in JSON, `stop`, `stop_token_ids`, `logit_bias`",
            envelope.MAX_LIST_ENTRIES,
            refuse,
        ),
        ("tokens and alternatives in the `logprobs` of an envelope", envelope.MAX_LOGPROB_ENTRIES, close),
        ("events in an EVENT", envelope.MAX_EVENTS, close),
        ("bytes of an event's `action` in UTF-8", envelope.MAX_ACTION_BYTES, close),
        ("bytes of an event's `payload`", envelope.MAX_PAYLOAD_BYTES, close),
        (
            "bytes of the differences in `packed`, and of all actions and payloads in it together",
            event_delta.MAX_UNPACKED_BYTES,
            close,
        ),
        ("SUBMITs without an answer", rules.MAX_PENDING, flood),
        ("EVENTs without an answer", rules.MAX_PENDING, flood),
        ("streams that were resumed and have not ended", rules.MAX_PENDING, flood),
        (
            "streams away whose last frame an ACK is checked against",
            rules.REMEMBERED_STREAMS,
            "it is believed",
        ),
        ("RESUMEs after gaps, without a frame applied in between", received_streams.MAX_GAPS, close),
        ("frames of a stream without acknowledgement", frames, "the server waits"),
        ("bytes of text of a stream without acknowledgement", window.MAXIMUM_BYTES, "the server waits"),
    )
    shown = ((what, most if isinstance(most, str) else f"{most:,}", then) for what, most, then in rows)
    return _table(("what", "at most", "beyond"), shown)


def _schema() -> str:
    """The fields and values of every message and enum of the schema, in its order."""
    blocks = []
    for about, kind, name, lines in _definitions(SCHEMA.read_text()):
        rows = list(_fields(lines) if kind == "message" else _values(lines))
        title = f"**{name}**{'' if kind == 'message' else ' (enum)'}: {about}"
        if not rows:
            blocks.append(f"{title} It has no fields.")
            continue
        head = ("no.", "field", "type", "") if kind == "message" else ("no.", "value", "")
        blocks.append(f"{title}\n\n{_table(head, rows)}")
    return "\n\n".join(blocks)


def _definitions(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if match := _MESSAGE.match(line):
            about = " ".join(_comment_above(lines, number))
            body = [] if line.endswith("}") else lines[number + 1 : lines.index("}", number)]
            yield about, match[1], match[2], body


def _comment_above(lines: Sequence[str], number: int) -> list[str]:
    start = number
    while lines[start - 1].startswith("// "):
        start -= 1
    return [line.removeprefix("// ") for line in lines[start:number]]


def _fields(lines: Iterable[str]) -> Iterator[Sequence[str]]:
    group = ""
    for line in map(str.strip, lines):
        if line.startswith("oneof "):
            group = line.split()[1]
        elif line == "}":
            group = ""
        elif match := _FIELD.match(line):
            kind = f"`{match['type']}`" + (f", one of `{group}`" if group else "")
            yield match["number"], f"`{match['name']}`", kind, match["about"]


def _values(lines: Iterable[str]) -> Iterator[Sequence[str]]:
    for line in lines:
        if match := _VALUE.match(line.strip()):
            yield match["number"], f"`{match['name']}`", match["about"]


SECTIONS: Mapping[str, Callable[[], str]] = {
    "connection table": _connection_table,
    "stream table": _stream_table,
    "close codes": _close_codes,
    "limits": _limits,
    "schema": _schema,
}
"""What is made, by the name between the comments."""


def rewritten(page: str) -> str:
    """Returns the page with every made part as it should be.

    Raises:
        ValueError: A part is missing, there twice or unknown.
    """
    names = [match[2].partition(":")[0].strip() for match in _MARKED.finditer(page)]
    if sorted(names) != sorted(SECTIONS):
        raise ValueError(f"the page has the parts {names}, wanted are {sorted(SECTIONS)}, each once")
    return _MARKED.sub(lambda match: f"{match[1]}\n{SECTIONS[match[2].strip()]()}\n\n{match[4]}", page)


def main() -> int:
    """Writes the made parts into the page; says what changed."""
    before = PAGE.read_text()
    after = rewritten(before)
    changed = [
        old[2]
        for old, new in zip(_MARKED.finditer(before), _MARKED.finditer(after), strict=True)
        if old[3] != new[3]
    ]
    PAGE.write_text(after)
    print(f"{PAGE.name}: {', '.join(changed) or 'nothing'} changed")  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
