"""What a reader's window makes of its stream: full speed, half speed, or a stand (S23). Pure.

    RUN ──used ≥ 75 %──► THROTTLE ──used ≥ 100 %──► PAUSE
     ▲ ▲                     │                        │
     │ └──── used ≤ 50 % ────┘                        │
     └──────────────── used ≤ 50 % ───────────────────┘

Only edges are reported: told the same use again, nothing is said. Between the marks the last word stands, so
a window that is filled as fast as it is emptied doesn't stop and start its stream with each frame. Whoever
empties a window is heard at half of it at the latest: no stream that stands is forgotten.

It must not know frames, clocks or who is told.
"""

from __future__ import annotations

from seedance_wire.messages import FlowAction

__all__ = ["FlowSignal"]


class FlowSignal:
    """The last word on one stream, and when another is due.

    Attributes:
        action: What holds now.
    """

    __slots__ = ("action",)

    def __init__(self) -> None:
        self.action = FlowAction.RUN

    def update(self, used: int, capacity: int) -> FlowAction | None:
        """Says what the use of a window changes.

        Args:
            used: Frames that are on their way, or count as such; may exceed ``capacity``, which may shrink.
            capacity: Frames that may be; above 0.

        Returns:
            The new word, or None if the old one stands.
        """
        action = self.action
        if used >= capacity:
            action = FlowAction.PAUSE
        elif 2 * used <= capacity:
            action = FlowAction.RUN
        elif 4 * used >= 3 * capacity and action is FlowAction.RUN:
            action = FlowAction.THROTTLE
        if action is self.action:
            return None
        self.action = action
        return action
