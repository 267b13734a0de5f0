"""What a node does by itself: generate, commit, send what is durable, hand over from replay to live, confirm.

Kept apart from what clients ask for (`node.py`). Each decision is a method of its own, small enough that a
mutant replaces just that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from attrs import Factory, define

from seedance_server.journal.errors import Fenced, SessionNotFound, StreamNotFound, StreamTruncated
from seedance_wire.connection import Connection
from seedance_wire.messages import (
    AckLevel,
    Checkpoint,
    Delta,
    Error,
    FinishReason,
    Flush,
    Frame,
    ServerMessage,
    StreamCheckpoint,
)
from seedance_wire.window import SlidingWindow
from tests.stateful.live_stream import LiveStream, Reader, frame_record, is_terminal, of_epoch, of_reader
from tests.stateful.network import Link
from tests.stateful.shared_journal import SharedJournal, at_once

__all__ = ["Egress", "OwnedSession", "Peer", "sha256"]

REPLAY_FRAMES = 2
"""In one page of the journal: few, so that a replay takes several."""
GONE, FENCED = 4410, 4412


@define(eq=False)
class Peer:
    """One connection, as the node sees it."""

    link: Link
    tenant: str
    connection: Connection
    session: OwnedSession | None = None
    readers: dict[int, Reader] = Factory(dict)


@define(eq=False)
class OwnedSession:
    """A session that this node believes to own.

    Attributes:
        id: Its name.
        epoch: Under which it writes.
        last_sequence_id: Of the client's messages that are in the journal.
        streams: Those in memory; others are in the journal.
        peer: Its connection, if there is one.
        news: Whether a checkpoint would say anything.
    """

    id: str
    epoch: int
    last_sequence_id: int
    streams: dict[int, LiveStream] = Factory(dict)
    peer: Peer | None = None
    news: bool = False


class Egress:
    """The half of a node that needs no client to act.

    Args:
        name: Part of the text that it generates: no two owners generate the same.
        journal: Shared with the other nodes.
        clock: Seconds.
        entropy: Gives the tokens and names of sessions, a number each.

    Attributes:
        sessions: Those that it believes to own.
        peers: Its connections, by the identity of their links.
        charged: Idempotency keys whose generation was begun from nothing.
        draining: Whether it leaves.
    """

    def __init__(
        self, name: str, journal: SharedJournal, clock: Callable[[], float], entropy: Callable[[], int]
    ) -> None:
        self.name = name
        self.journal = journal
        self.clock = clock
        self.entropy = entropy
        self.sessions: dict[str, OwnedSession] = {}
        self.peers: dict[int, Peer] = {}
        self.charged: list[bytes] = []
        self.draining = False

    def tell(self, peer: Peer, *messages: ServerMessage) -> None:
        """Sends, in one WebSocket message."""
        payload = peer.connection.send(*messages)
        are_frames = all(isinstance(message, Delta | Flush | Error) for message in messages)
        peer.link.send_down(payload, spare=are_frames and not peer.connection.is_compressing)

    def lose(self, link: Link, code: int = 1006) -> None:
        """The connection is over, whoever ended it; streams go on without a reader."""
        peer = self.peers.pop(id(link), None)
        if peer is None:
            return
        link.close(code)
        if (session := peer.session) is not None and session.peer is peer:
            session.peer = None
            for stream in session.streams.values():
                stream.paused = False  # nobody's window holds it any more
            try:
                at_once(self.journal.release_session(session.id, session.epoch))
            except (Fenced, SessionNotFound):
                self.fenced(session.id)

    def fenced(self, session_id: str) -> None:
        """Another owner has it: this node forgets it at once."""
        session = self.sessions.pop(session_id, None)
        if session is not None and (peer := session.peer) is not None:
            self.peers.pop(id(peer.link), None)
            peer.link.close(FENCED)

    def runnable(self) -> list[tuple[OwnedSession, LiveStream]]:
        """Streams that the engine works on."""
        return [
            (session, stream)
            for session in self.sessions.values()
            for stream in session.streams.values()
            if stream.started and not stream.ended and not stream.paused
        ]

    def generate(self, session: OwnedSession, stream: LiveStream, text: str, *, last: bool) -> None:
        """One step of the engine for one stream."""
        stream.make(text and f"{self.name}{session.epoch}{text}", session.epoch)
        if last:
            stream.finish(FinishReason.STOP, session.epoch)

    def commit(self) -> None:
        """One commit for each stream that has frames waiting; an owner of old learns that it is one."""
        for session in tuple(self.sessions.values()):
            try:
                for stream in session.streams.values():
                    if stream.pending:
                        self.append(session, stream)
            except Fenced:
                self.fenced(session.id)
            except SessionNotFound:
                self.fenced(session.id)

    def append(self, session: OwnedSession, stream: LiveStream) -> None:
        """Makes a stream's pending frames durable."""
        records = [frame_record(frame) for frame in stream.pending]
        finish = "stop" if is_terminal(stream.pending[-1]) else None
        at_once(self.journal.append(session.id, session.epoch, stream.id, records, finish=finish))
        stream.commit_done()
        session.news = True

    def pump(self) -> None:
        """Sends every frame that is durable and fits its window; pauses streams whose window is full."""
        for peer in tuple(self.peers.values()):
            for reader in tuple(peer.readers.values()):
                self._send_frames(peer, reader)

    def _send_frames(self, peer: Peer, reader: Reader) -> None:
        assert peer.session is not None
        while not reader.ended and (frames := self.next_frames(peer.session, reader)):
            for frame in frames:
                size = len(frame.text.encode()) if isinstance(frame, Delta) else 0
                if frame.id <= min(reader.taken, reader.client_has):
                    reader.window.skip(frame.id)
                    reader.next_id = frame.id + 1
                    continue
                if not self.may_send(reader.window, size):
                    if (stream := peer.session.streams.get(reader.stream_id)) is not None:
                        stream.paused = True
                    return
                if frame.id <= reader.client_has:  # it waits there for the application
                    reader.window.on_sent(frame.id, size, self.clock())
                    reader.next_id = frame.id + 1
                    continue
                if is_terminal(frame):
                    self.checkpoint(peer)
                reader.window.on_sent(frame.id, size, self.clock())
                reader.next_id, reader.ended = frame.id + 1, is_terminal(frame)
                self.tell(peer, of_reader(frame, reader, peer.session.epoch))

    def may_send(self, window: SlidingWindow, size: int) -> bool:
        """Whether the window has room."""
        return window.can_send(size)

    def next_frames(self, session: OwnedSession, reader: Reader) -> list[Frame]:
        """The next durable frames for a reader: from the tail if it reaches back, else from the journal."""
        stream = session.streams.get(reader.stream_id)
        if stream is not None and reader.next_id >= self.hand_over(stream):
            return self.live_frames(stream, reader.next_id - 1)
        try:
            page = at_once(
                self.journal.read_frames(session.id, reader.stream_id, reader.next_id - 1, REPLAY_FRAMES)
            )
        except (StreamTruncated, StreamNotFound):
            assert session.peer is not None
            self.lose(session.peer.link, GONE)  # deleted under the reader: it asks again, and is told
            return []
        return [of_epoch(frame, session.epoch) for frame in page.frames]

    def hand_over(self, stream: LiveStream) -> int:
        """From which frame on a reader is served from memory."""
        return stream.tail_start

    def live_frames(self, stream: LiveStream, after_id: int) -> list[Frame]:
        """Frames that may be sent to a reader that has reached the tail."""
        return stream.tail_after(after_id)

    def checkpoint(self, peer: Peer) -> None:
        """Tells how far everything is durable, and by which digests the client can check its text."""
        session = peer.session
        if session is None or not session.news:
            return
        session.news = False
        streams = []
        for stream_id, reader in peer.readers.items():
            sent_id = reader.next_id - 1
            text = None if reader.ended else self.text_of(session, stream_id, sent_id)
            if sent_id and text is not None:
                streams.append(
                    StreamCheckpoint(stream_id=stream_id, frame_id=sent_id, digest=sha256(text.encode())[:16])
                )
        self.tell(
            peer,
            Checkpoint(
                sequence_id=self.confirmed(session),
                timestamp_ms=round(self.clock() * 1e3),
                ack_level=AckLevel.COMMITTED,
                streams=tuple(streams),
            ),
        )

    def confirmed(self, session: OwnedSession) -> int:
        """Up to which of its messages a client may forget."""
        return session.last_sequence_id

    def text_of(self, session: OwnedSession, stream_id: int, last_id: int) -> str | None:
        """The text up to a frame, as the journal has it; None if it has been deleted."""
        try:
            frames = self.frames_of(session, stream_id)
        except (StreamTruncated, StreamNotFound):
            return None
        return "".join(frame.text for frame in frames if isinstance(frame, Delta) and frame.id <= last_id)

    def frames_of(self, session: OwnedSession, stream_id: int) -> list[Frame]:
        """Every frame that the journal has."""
        frames: list[Frame] = []
        while True:
            after_id = frames[-1].id if frames else 0
            page = at_once(self.journal.read_frames(session.id, stream_id, after_id, 100))
            if not page.frames:
                return frames
            frames += [of_epoch(frame, session.epoch) for frame in page.frames]


def sha256(data: bytes) -> bytes:
    """SHA-256 of ``data``."""
    return hashlib.sha256(data).digest()
