"""What a check is: a name, the part of PROTOCOL.md that it holds an implementation to, and the work.

The name is that of the function without `client_` or `server_`; the first line of its docstring says what it
demands. Must not know how one is run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

from attrs import frozen

__all__ = ["BINARY", "EVERY", "Check", "Role", "check", "checks"]

Role: TypeAlias = Literal["client", "server"]
Work: TypeAlias = Callable[[Any], Awaitable[None]]

BINARY = ("seedance.v1",)
EVERY = ("seedance.v1", "seedance.v1.json", "seedance.v1.raw")

_REGISTRY: list[Check] = []


@frozen(kw_only=True)
class Check:
    """One check.

    Attributes:
        name: Its name, such as ``client/drops-duplicates``.
        role: Which end it holds to account.
        demand: What it demands, in one line.
        section: Where PROTOCOL.md says so.
        subprotocols: Under which it is run.
        feature: What the implementation must say that it has; None: every one has it.
        is_long: Whether a short run leaves it out.
        work: Fails with `peer.CheckFailed`.
    """

    name: str
    role: Role
    demand: str
    section: str
    subprotocols: Sequence[str]
    feature: str | None
    is_long: bool
    work: Work


def check(
    section: str,
    *,
    subprotocols: Sequence[str] = BINARY,
    feature: str | None = None,
    is_long: bool = False,
) -> Callable[[Work], Work]:
    """Registers the function below it as a check."""

    def register(work: Work) -> Work:
        name = work.__name__
        role: Role = "client" if name.startswith("client_") else "server"
        _REGISTRY.append(
            Check(
                name=f"{role}/{name.removeprefix(f'{role}_').replace('_', '-')}",
                role=role,
                demand=(work.__doc__ or "").partition("\n")[0],
                section=section,
                subprotocols=subprotocols,
                feature=feature,
                is_long=is_long,
                work=work,
            )
        )
        return work

    return register


def checks(role: Role) -> tuple[Check, ...]:
    """Every check of a role, in the order in which they stand."""
    return tuple(each for each in _REGISTRY if each.role == role)
