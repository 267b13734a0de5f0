"""What clients report about their users, as a frozen value (S12).

Read it from `messages.py`, which hands it on. What it means is the application's business.
"""

from __future__ import annotations

from attrs import frozen

__all__ = ["UserEvent"]


@frozen(kw_only=True)
class UserEvent:
    """Something that a user did, or that was observed about it (S12).

    Attributes:
        timestamp: When, in milliseconds since 1970 on the client's clock.
        user_id: Whose; the application's own number.
        action: What, as a short name.
        payload: Whatever belongs to it.
    """

    timestamp: int
    user_id: int
    action: str
    payload: bytes = b""
