"""A client's session and a model of a server with nothing lost between them until the line is cut."""

from __future__ import annotations

from seedance_wire.bookmark import Bookmark
from seedance_wire.client_session import ClientSession, SessionEvent
from seedance_wire.codec import make_codec
from seedance_wire.messages import Accepted, Delta, Durability, Hello, Message, Submit
from tests.model_server import ModelServer, ModelStream

__all__ = ["Line", "submit", "texts_of"]


def submit(key: int, **fields: object) -> Submit:
    """A request under a key of its own."""
    return Submit(sequence_id=0, idempotency_key=bytes([key]) * 16, prompt="p", **fields)  # type: ignore[arg-type]


class Line:
    """A session and a server, with nothing lost between them until it is cut."""

    def __init__(
        self, subprotocol: str = "seedance.v1", bookmark: Bookmark | None = None, **limits: int
    ) -> None:
        self.server = ModelServer(subprotocol)
        self.session = ClientSession(subprotocol, hello=Hello(), bookmark=bookmark, **limits)
        self.said: list[Message] = []  # by the client, on all connections

    def connect(self) -> list[SessionEvent]:
        """A new connection, and all that follows."""
        self.server.open()
        self.hear(self.session.connect())
        return self.flow()

    def cut(self) -> list[SessionEvent]:
        """The connection is lost at both ends."""
        self.session.connection_lost()
        self.server.cut()
        return self.events()

    def hear(self, payload: bytes | str) -> None:
        """The server gets a message."""
        self.said += make_codec(self.server.subprotocol).decode_client(payload)  # type: ignore[arg-type]
        self.server.receive(payload)

    def flow(self, *, answer: bool = True) -> list[SessionEvent]:
        """All messages arrive, all requests are accepted, all frames are sent."""
        events = []
        for _ in range(4):
            for payload in self.session.data_to_send():
                self.hear(payload)
            for waiting in list(self.server.waiting) if answer else []:
                self.server.answer(waiting)
            for stream in self.streams():
                self.server.send_frames(stream)
            events += self.arrive()
        return events

    def arrive(self) -> list[SessionEvent]:
        """What the server said arrives."""
        while self.server.out:
            self.session.receive_data(self.server.out.pop(0))
        return self.events()

    def events(self) -> list[SessionEvent]:
        """All events that are waiting."""
        events = []
        while (event := self.session.next_event()) is not None:
            events.append(event)
        return events

    def streams(self) -> list[ModelStream]:
        """The server's streams of this session."""
        return [] if self.server.session is None else list(self.server.session.streams.values())

    def begin(self, durability: Durability = Durability.COMMITTED, *texts: str) -> ModelStream:
        """A stream with some text that came out."""
        number = self.session.submit(submit(len(self.said) + 1, durability=durability))
        (accepted,) = self.flow()
        assert isinstance(accepted, Accepted)
        assert accepted.sequence_id == number
        stream = self.streams()[-1]
        for text in texts:
            stream.generate(text)
        assert texts_of(self.flow()) == list(texts)
        return stream


def texts_of(events: list[SessionEvent]) -> list[str]:
    """The texts of the DELTA frames among events."""
    return [event.text for event in events if isinstance(event, Delta)]
