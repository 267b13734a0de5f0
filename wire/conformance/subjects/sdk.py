"""seedance-sdk as an implementation under test: commands on standard input, answers on standard output.

`--fault NAME` breaks it on purpose, to see that the checks notice; see `client_faults.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from conformance.subjects.client_faults import CLIENT_FAULTS
from seedance_sdk import AsyncSeedanceClient
from seedance_sdk.errors import (
    ConnectionFailed,
    CursorAhead,
    Diverged,
    FingerprintMismatch,
    ProtocolError,
    SeedanceError,
    StreamExpired,
    StreamNotFound,
    StreamTruncated,
    Superseded,
)
from seedance_sdk.stream import AsyncStream

__all__ = ["main"]

_NAMES: Mapping[type[SeedanceError], str] = {
    StreamNotFound: "not_found",
    StreamExpired: "expired",
    StreamTruncated: "truncated",
    CursorAhead: "cursor_ahead",
    Diverged: "diverged",
    FingerprintMismatch: "fingerprint_mismatch",
    Superseded: "superseded",
    ProtocolError: "protocol_error",
    ConnectionFailed: "connection_lost",
}


_Command: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class _Commands:
    """One client at a time, and its streams by the names that the runner gives them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._client: AsyncSeedanceClient | None = None
        self._scope = trio.CancelScope()
        self._leave = self._left = trio.Event()
        self._streams: dict[str, AsyncStream] = {}

    @property
    def client(self) -> AsyncSeedanceClient:
        assert self._client is not None, "connect comes first"
        return self._client

    async def start(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "name": "seedance-sdk",
            "roles": ["client"],
            "subprotocols": ["seedance.v1", "seedance.v1.json"],
            "features": ["cancel", "pieces", "report", "zstd"],
        }

    async def connect(self, given: Mapping[str, Any]) -> dict[str, Any]:
        await self.reset(given)
        client = AsyncSeedanceClient(
            given["url"], subprotocol=given["subprotocol"], api_key="conformance", dice=lambda: 0.0
        )
        self._client = await self._nursery.start(self._keep, client)
        return {}

    async def _keep(self, client: AsyncSeedanceClient, task_status: trio.TaskStatus[Any]) -> None:
        self._leave, self._left = trio.Event(), trio.Event()
        left = self._left
        with trio.CancelScope() as self._scope:
            async with client:
                task_status.started(client)
                await self._leave.wait()
        left.set()

    async def submit(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self._streams[given["stream"]] = await self.client.complete(
            prompt=given["prompt"], stream=True, durability=given["durability"]
        )
        return {}

    async def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        stream = self._streams[given["stream"]]
        pieces: list[str] = []
        wanted = given.get("bytes")
        while wanted is None or len("".join(pieces).encode()) < wanted:
            try:
                chunk = await stream.receive()
            except SeedanceError as error:
                error.partial = "".join(pieces)
                raise
            if chunk is None:
                break
            pieces.append(chunk.delta)
            if chunk.finish_reason is not None:
                return {"text": "".join(pieces), "finish_reason": chunk.finish_reason}
        return {"text": "".join(pieces)}

    async def cancel(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self._streams[given["stream"]].cancel()
        return {}

    async def report(self, given: Mapping[str, Any]) -> dict[str, Any]:
        for event in given["events"]:
            payload, action = bytes.fromhex(event["payload"]), event["action"]
            self.client.report(action, payload, user_id=event["user_id"], timestamp_ms=event["timestamp"])
        await self.client.flush_reports()
        return {}

    async def reset(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self._scope.cancel()
        return await self.close(given)

    async def close(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._streams.clear()
        if self._client is not None:
            self._client = None
            self._leave.set()
            await self._left.wait()
        return {}


def _name_of(error: SeedanceError) -> str:
    if error.code is not None:
        return str(error.code.value)
    return next((name for kind, name in _NAMES.items() if isinstance(error, kind)), type(error).__name__)


async def _serve() -> None:
    lines = trio.wrap_file(sys.stdin)

    async def work(do: _Command, given: dict[str, Any]) -> None:
        try:
            _say({"id": given["id"], "ok": await do(given)})
        except SeedanceError as error:
            told = {"code": _name_of(error), "message": str(error), "text": error.partial}
            _say({"id": given["id"], "error": told})
        except Exception as error:  # noqa: BLE001 - a bug here; said, since dying would wait for the next line
            _say({"id": given["id"], "error": {"code": "internal", "message": repr(error)}})

    async with trio.open_nursery() as nursery:
        commands = _Commands(nursery)
        async for line in lines:
            given = json.loads(line)
            nursery.start_soon(work, getattr(commands, given["do"]), given)
        nursery.cancel_scope.cancel()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serves until its standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=sorted(CLIENT_FAULTS), action="append", default=[])
    for fault in parser.parse_args().fault:
        CLIENT_FAULTS[fault]()
    trio.run(_serve)


if __name__ == "__main__":
    main()
