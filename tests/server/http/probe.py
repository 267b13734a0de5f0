"""Asks an in-memory server over HTTP/1.1: raw bytes out, h11's view of the answer in."""

from __future__ import annotations

import json
from typing import Any

import h11
import trio
from attrs import frozen


@frozen
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    """Everything up to the end."""
    data = b""
    while more := await stream.receive_some(65536):
        data += more
    return data


class Client:
    """One HTTP/1.1 connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.parser = h11.Connection(h11.CLIENT)

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> None:
        """Sends a request; headers are given with underscores for dashes."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [("Host", "localhost"), *((name.replace("_", "-"), value) for name, value in headers.items())]
        if body is not None:
            lines += [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
        if self.parser.our_state is h11.DONE:
            self.parser.start_next_cycle()
        sent = self.parser.send(h11.Request(method=method, target=path, headers=lines)) or b""
        if data:
            sent += self.parser.send(h11.Data(data=data)) or b""
        sent += self.parser.send(h11.EndOfMessage()) or b""
        await self.stream.send_all(sent)

    async def next_event(self) -> h11.Event:
        while (event := self.parser.next_event()) is h11.NEED_DATA:
            self.parser.receive_data(await self.stream.receive_some(65536))
        return event

    async def read(self) -> Answer:
        """Reads the whole answer."""
        response = await self.next_event()
        assert isinstance(response, h11.Response), response
        body = b""
        while isinstance(event := await self.next_event(), h11.Data):
            body += event.data
        assert isinstance(event, h11.EndOfMessage), event
        headers = {name.decode(): value.decode() for name, value in response.headers}
        return Answer(response.status_code, headers, body)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Sends and reads."""
        await self.send(method, path, body, **headers)
        return await self.read()


@frozen
class Event:
    """One server-sent event."""

    id: str
    data: str

    def json(self) -> Any:
        return json.loads(self.data)


class Events:
    """An answer as events, read one after the other."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.comments: list[str] = []
        self._text = ""
        self._is_over = False

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> h11.Response:
        """Sends a request and reads the head of its answer."""
        await self.client.send(method, path, body, **headers)
        response = await self.client.next_event()
        assert isinstance(response, h11.Response), response
        if response.status_code != 200:
            self._text = (await self.client.next_event()).data.decode()
            raise AssertionError((response.status_code, self._text))
        return response

    async def next(self) -> Event | None:
        """The next event; None at the end of the answer."""
        while True:
            while "\n\n" not in self._text:
                event = await self.client.next_event()
                if not isinstance(event, h11.Data):
                    assert isinstance(event, h11.EndOfMessage), event
                    return None
                self._text += event.data.decode()
            block, _, self._text = self._text.partition("\n\n")
            lines = dict(line.split(": ", 1) for line in block.splitlines())
            if "data" in lines:
                return Event(lines.get("id", ""), lines["data"])
            self.comments.append(lines[""])

    async def rest(self, events: list[Event] | None = None) -> list[Event]:
        """All that follow, behind those that are there already."""
        events = [] if events is None else events
        while (event := await self.next()) is not None:
            events.append(event)
        return events
