"""A stream on a real engine loop, over a journal and a reader that do as they are told."""

from contextlib import asynccontextmanager, suppress

import trio
from attrs import define, field

from seedance_server.accounts import Accounts
from seedance_server.admission import Admission
from seedance_server.config import Config
from seedance_server.engine.sampling_params import SamplingParams
from seedance_server.engine_loop import EngineLoop
from seedance_server.prepared import Prepared
from seedance_server.request_watch import RequestWatch
from seedance_server.served_model import ServedModel
from seedance_server.stream import Stream
from seedance_server.testing import InlineExecutor, ScriptedEncoder, ScriptedEngine
from seedance_wire.messages import FlowAction
from seedance_wire.stored_form import load_frame

PIECES = [f"{number} " for number in range(300)]
WHOLE = "".join(PIECES)


class Store:
    """A journal of one stream, with faults."""

    def __init__(self):
        self.records, self.finish, self.appends, self.abandoned = [], None, 0, False
        self.fault, self.commit_s, self.attempts = None, 0.0, 1

    async def append(self, stream_id, frames, finish):
        await trio.sleep(self.commit_s)
        self.appends += 1
        if self.fault is not None and (error := self.fault(finish)) is not None:
            raise error
        self.records += frames
        self.finish = finish

    def append_soon(self, stream_id, frames, settled):
        self.nursery.start_soon(self._append_soon, stream_id, frames, settled)

    async def _append_soon(self, stream_id, frames, settled):
        is_written = False
        with trio.CancelScope(shield=True), suppress(Exception):
            await self.append(stream_id, frames, None)
            is_written = True
        settled(is_written)

    async def note_attempt(self, stream_id):
        return self.attempts

    async def abandon(self, stream_id):
        self.abandoned = True

    @property
    def frames(self):
        return [load_frame(record.payload, epoch=1) for record in self.records]


@define(eq=False)
class Reader:
    """Takes so many frames at most, and then says nothing until it is told to."""

    stream: Stream
    window: int = 10**9
    sent_id: int = 0
    in_flight: int = 0
    told: list[FlowAction] = field(factory=list)

    @property
    def room(self):
        return self.window - self.in_flight

    @property
    def window_size(self):
        return self.window

    def note_flow(self, action):
        self.told.append(action)

    async def run(self):
        while True:
            await self.stream.tail.wait_beyond(self.sent_id)
            self.in_flight += self.stream.tail.last_id - self.sent_id
            self.sent_id = self.stream.tail.last_id

    def acknowledge(self):
        self.in_flight = 0
        self.stream.note_progress()


@asynccontextmanager
async def streaming(
    script=PIECES, *, reader=True, step_s=0.01, deadline_s=float("inf"), durable=True, limits=None, **more
):
    engine = ScriptedEngine(script, **more)
    loop = EngineLoop(engine, InlineExecutor(step_s), buffer_outputs=8, stall_timeout_s=60)
    model = ServedModel(
        name="m", context_tokens=99, vocab_size=9, engine=engine, encoder=ScriptedEncoder(), fingerprint=b""
    )
    most = dict.fromkeys(("max_generations", "max_waiting", "max_waiting_per_tenant"), 9)
    admission = Admission(model, loop, accounts=Accounts(), preprocess_workers=1, **most)
    store = Store()
    stream = Stream(
        1,
        Prepared(prompt_ids=(7,), params=SamplingParams(seed=1), arrival_s=0),
        admission=admission,
        store=store,
        config=Config(model_path="m", **(limits or {})),
        is_durable=durable,
        cancel_on_disconnect=False,
        watch=RequestWatch((), trio.current_time),
        deadline_s=deadline_s,
    )
    stream.engine, stream.store = engine, store
    async with trio.open_nursery() as nursery:
        store.nursery = nursery
        nursery.start_soon(loop.run)
        if reader:
            stream.reader = Reader(stream, 10**9 if reader is True else reader)
            stream.add_reader(stream.reader)
            nursery.start_soon(stream.reader.run)
        nursery.start_soon(stream.run)
        yield stream
        nursery.cancel_scope.cancel()
