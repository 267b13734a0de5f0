"""What is behind the front door, whoever comes in and whatever they speak.

The house stands before the model is loaded: then it has no service, and says so. WebSockets and HTTP requests
ask the same house, so there is one answer to whether new work is taken.

It must not know connections, paths or encodings.
"""

from __future__ import annotations

from collections import Counter

from attrs import define, field, frozen

from seedance_server.admission import Admission
from seedance_server.config import Config
from seedance_server.engine_loop import EngineLoop
from seedance_server.gate import Gate
from seedance_server.journal.interface import Journal
from seedance_server.metrics.exposition import Metrics
from seedance_server.readiness import Cause, Readiness, Reason
from seedance_server.requests import Requests
from seedance_server.session_registry import SessionRegistry
from seedance_server.start_up import StartUp
from seedance_server.upgrade import HttpAnswer
from seedance_server.watchdog import Watchdog
from seedance_wire.messages import ErrorCode

__all__ = ["House", "Service"]


@frozen(kw_only=True)
class Service:
    """What a connection is let in to.

    Attributes:
        admission: Decides on requests.
        engine_loop: Where they run.
        journal: Where they are kept.
        requests: Makes streams of them.
        registry: Where sessions are.
        watchdog: Says whether all that works.
    """

    admission: Admission
    engine_loop: EngineLoop
    journal: Journal
    requests: Requests
    registry: SessionRegistry
    watchdog: Watchdog


@define(eq=False)
class House:
    """The server as connections see it.

    Attributes:
        config: All settings.
        gate: Who may come in.
        metrics: What is counted.
        start_up: What is done until there is a service.
        service: What they come for; None until the model is loaded.
        is_draining: Whether the server shuts down.
        refusals: Who was turned away, by reason.
    """

    config: Config
    gate: Gate
    metrics: Metrics
    start_up: StartUp = field(factory=StartUp)
    service: Service | None = None
    is_draining: bool = False
    refusals: Counter[str] = field(init=False, factory=Counter)

    def readiness(self) -> Readiness:
        """Whether new work is taken, and all that is in the way of it."""
        draining = (Reason(Cause.DRAINING, "the server is shutting down"),) if self.is_draining else ()
        if self.service is None:
            phase = self.start_up.phase
            text = f"loading the model: {phase}" if phase else "loading the model"
            return Readiness((*draining, Reason(Cause.LOADING, text)))
        model = self.service.admission.model
        return Readiness((*draining, *self.service.watchdog.reasons()), model.invariance, model.kernels)

    @property
    def has_failed(self) -> bool:
        """Whether the engine takes no more work."""
        return self.service is not None and self.service.admission.has_failed

    @property
    def refusal_code(self) -> ErrorCode:
        """The word for it that nothing is taken just now, as REFUSED would have it."""
        if self.is_draining:
            return ErrorCode.DRAINING
        return ErrorCode.ENGINE_FAILED if self.has_failed else ErrorCode.OVERLOADED

    def note_refused(self, answer: HttpAnswer) -> None:
        """Counts that somebody was turned away at the door."""
        self.refusals[answer.reason] += 1
