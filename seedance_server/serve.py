"""The root nursery: start order, readiness, drain, shutdown.

    listen, open the journal (in use? say so before anything slow) → load the model on the decode thread
    → engine loop, sessions → open the door → ready line … SIGINT or SIGTERM → GOAWAY, streams get their time,
    the others stay in the journal → close → exit 0, in time whatever hangs (`shutdown.py`)
    … or the engine fails → all streams stay in the journal, connections close → close → exit 3

The journal is opened before everything that writes to it and closed after. The port answers from the first
moment: liveness yes, readiness no. A start that fails raises one StartupError or EngineError, never a group.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Sequence

import attrs
import structlog
import trio

from seedance_server.accounts import Accounts
from seedance_server.admission import Admission
from seedance_server.config import Config
from seedance_server.decode_thread import DecodeThread
from seedance_server.engine.errors import EngineError
from seedance_server.engine.progress import Progress
from seedance_server.engine_loop import EngineLoop
from seedance_server.errors import EngineStopped, StartupError
from seedance_server.event_delivery import EventDelivery
from seedance_server.event_sinks import make_sinks
from seedance_server.front_door import CHAT_PATH, FrontDoor, Service
from seedance_server.gate import Gate
from seedance_server.journal.errors import JournalUnusable
from seedance_server.journal.interface import Journal
from seedance_server.journal_file import make_journal
from seedance_server.listener import Reception, descriptor_budget, listen
from seedance_server.load import LoadMeter, open_device_reader, watch_load
from seedance_server.request_watch import Observer
from seedance_server.requests import Requests
from seedance_server.served_model import ServedModel
from seedance_server.session_registry import SessionRegistry
from seedance_server.shutdown import Shutdown
from seedance_server.tls import Tls
from seedance_server.tracing import open_traces
from seedance_server.watchdog import Watchdog

__all__ = ["EngineFactory", "serve"]

_log = structlog.get_logger(__name__)

EngineFactory = Callable[[Config, Progress], ServedModel]
"""Loads the model, on the decode thread; told the settings and where to report progress."""

_THREAD_STOP_S = 5.0
"""Time for the last step to end at shutdown; after it the process ends anyway."""
_SWITCH_INTERVAL_S = 0.001
"""How long the decode thread waits for the interpreter while the event loop has much to do. Python's own 5 ms
would be most of what an idle engine takes to heed a reader that can't follow."""
_LEAST_CONNECTIONS = 32
"""With room for fewer the server doesn't start: it would turn away nearly everybody."""


async def serve(
    config: Config,
    engine_factory: EngineFactory,
    *,
    watch_signals: bool = True,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until a signal, until cancelled, or until the engine fails; then drains.

    What a failed engine leaves is for the next process: streams stay in the journal, clients are sent away.

    Args:
        config: All settings.
        engine_factory: Loads the model.
        watch_signals: React to SIGINT and SIGTERM; only on the main thread.
        task_status: Started with the service's URL once it can answer.

    Raises:
        StartupError: Too few files may be open, or address or journal can't be used.
        EngineError: The model can't be loaded.
        EngineStopped: The engine, or the device that it runs on, is of no use any more to this process.
    """
    config = _within_descriptors(config)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    shutdown = Shutdown(config.shutdown_timeout_s, config.close_timeout_s)
    thread = DecodeThread()
    failure: StartupError | EngineError | EngineStopped | None = None
    try:
        async with trio.open_nursery() as nursery:
            if watch_signals:
                await nursery.start(shutdown.watch_signals)
            try:
                await _serve(config, engine_factory, thread, shutdown, nursery, watch_signals, task_status)
            except (StartupError, EngineError, EngineStopped) as error:
                failure = error
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):  # bounded by the time-out
            patience_s = min(_THREAD_STOP_S, shutdown.remaining_s / 2)
            if shutdown.loading.cancelled_caught:
                patience_s = 0.0
            if not await thread.stop(patience_s) and patience_s:  # loading is left behind as a rule
                _log.warning("the decode thread didn't end in time; the process ends without it")
        shutdown.close()
    if failure is not None:
        raise failure


async def _serve(  # noqa: PLR0915 - one order of things, read from top to bottom
    config: Config,
    engine_factory: EngineFactory,
    thread: DecodeThread,
    shutdown: Shutdown,
    nursery: trio.Nursery,
    watch_signals: bool,
    task_status: trio.TaskStatus[str],
) -> None:
    gate = Gate(api_key=config.api_key, path=config.keys_path)
    tls = Tls.of(config)
    traces = open_traces(config.otlp_endpoint)
    door = FrontDoor(config, gate, traces=traces, tls=tls)
    listeners = await listen(config.host, config.port)
    serve_stream = door.serve_stream if tls is None else tls.under(door.serve_stream)
    reception = Reception(listeners, door.lobby, serve_stream)
    nursery.start_soon(reception.run)
    url = _url("ws" if tls is None else "wss", config.host, listeners[0].socket.getsockname()[1])
    if watch_signals and (config.keys_path is not None or tls is not None):
        await nursery.start(_reload_on_signal, gate, tls)
    sinks = make_sinks(config)
    journal = make_journal(config, gate.accounts.journal_bytes)
    try:
        await nursery.start(journal.run)
    except JournalUnusable as error:
        raise StartupError(f"{error} (see --journal)") from error

    thread.start()
    model: ServedModel | None = None
    with shutdown.loading:
        model = await thread.call(
            lambda: engine_factory(config, door.house.start_up.report), abandon_on_cancel=True
        )
    if model is None:
        return
    async with trio.open_nursery() as work:
        work.start_soon(gate.run)
        if config.keys_path is not None:  # else there are no quotas
            meter = LoadMeter(config.link_bytes_per_second, device=open_device_reader())
            work.start_soon(watch_load, meter.read, gate.accounts.note_load)
        delivery = EventDelivery(journal, sinks)
        work.start_soon(delivery.run)
        work.start_soon(door.heartbeats.run)
        service = await _start_service(
            config, model, thread, journal, delivery, gate.accounts, door.observers, work
        )
        work.start_soon(_run_engine, service.engine_loop, shutdown)
        door.open(service)
        if not gate.wants_key:
            _log.warning("no --keys and no --api-key: whoever is on this machine may use this server")
        door.house.start_up.finish()
        sys.stdout.write(f"seedance-server ready on {url}\n")
        sys.stdout.flush()
        task_status.started(url)

        await shutdown.requested.wait()
        with trio.move_on_after(shutdown.draining_s):
            if not shutdown.has_failed:
                with shutdown.draining:
                    await door.drain(shutdown.streams_s)
            if shutdown.has_failed:  # from the start, or meanwhile
                await door.break_off()
        await reception.end()  # whoever is still there has its session given back
        _log_figures(service)
        work.cancel_scope.cancel()  # streams stop where they are, before the journal does
    if traces is not None:
        await traces.close(shutdown.remaining_s / 4)
    if service.engine_loop.failure is not None:
        raise service.engine_loop.failure


async def _run_engine(engine_loop: EngineLoop, shutdown: Shutdown) -> None:
    await engine_loop.run()  # until it fails
    shutdown.fail()


async def _reload_on_signal(gate: Gate, tls: Tls | None, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            await gate.reload(always=True)
            if tls is not None:
                await tls.reload()


async def _start_service(
    config: Config,
    model: ServedModel,
    thread: DecodeThread,
    journal: Journal,
    delivery: EventDelivery,
    accounts: Accounts,
    observers: Sequence[Observer],
    work: trio.Nursery,
) -> Service:
    """Starts all that turns requests into streams."""
    engine_loop = EngineLoop(
        model.engine,
        thread,
        buffer_outputs=config.stream_buffer_outputs,
        stall_timeout_s=config.stall_timeout_s,
        idle_check_s=config.idle_check_s,
    )
    admission = Admission(
        model,
        engine_loop,
        accounts=accounts,
        max_generations=config.max_generations,
        max_waiting=config.max_waiting,
        max_waiting_per_tenant=config.max_waiting_per_tenant,
        preprocess_workers=config.preprocess_workers,
    )
    registry = SessionRegistry(
        journal,
        new_session_id=lambda: secrets.token_hex(16),
        on_events=delivery.notify if delivery.has_sinks else None,
    )
    await work.start(registry.run)
    watchdog = Watchdog(engine_loop, journal, stall_timeout_s=config.stall_timeout_s)
    work.start_soon(watchdog.run)
    return Service(
        admission=admission,
        engine_loop=engine_loop,
        journal=journal,
        requests=Requests(journal, admission, config, observers=observers),
        registry=registry,
        watchdog=watchdog,
    )


def _log_figures(service: Service) -> None:
    """What an operator wants to know of the run that ends: work, and whether anything was held up."""
    engine, watchdog = service.engine_loop.statistics(), service.watchdog.statistics()
    decisions = service.engine_loop.decision_times.statistics()
    _log.info(
        "served",
        steps=engine.steps,
        outputs=engine.outputs,
        pauses=engine.pauses,
        decisions=decisions.count,
        decision_p50_ms=round(decisions.p50_s * 1e3, 3),
        decision_p99_ms=round(decisions.p99_s * 1e3, 3),
        decision_max_ms=round(decisions.max_s * 1e3, 3),
        step_left_p50_ms=round(decisions.step_p50_s * 1e3, 3),
        step_left_p99_ms=round(decisions.step_p99_s * 1e3, 3),
        loop_stalls=watchdog.loop_stalls,
        longest_loop_stall_ms=round(watchdog.longest_loop_stall_s * 1e3, 1),
    )


def _within_descriptors(config: Config) -> Config:
    """Fewer connections than asked for, rather than a server that dies of its own success."""
    budget = descriptor_budget()
    if budget < _LEAST_CONNECTIONS:
        raise StartupError(
            f"the limit on open files leaves {budget} connections, at least {_LEAST_CONNECTIONS} are needed: "
            "see ulimit -n"
        )
    lobby = min(config.max_unauthenticated, budget // 4)
    room = min(config.max_connections, budget - lobby)
    if (lobby, room) == (config.max_unauthenticated, config.max_connections):
        return config
    _log.warning(
        "the limit on open files allows fewer connections: see ulimit -n",
        asked=config.max_connections,
        allowed=room,
        unauthenticated=lobby,
    )
    return attrs.evolve(config, max_connections=room, max_unauthenticated=lobby)


def _url(scheme: str, host: str, port: int) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}:{port}{CHAT_PATH}"
