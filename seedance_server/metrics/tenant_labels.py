"""Which tenants have series of their own: the first so many, and the rest is one.

A series costs whoever stores it memory for as long as they keep it, and an operator may have thousands of
tenants. Who has a series keeps it, so that counters never change hands.

It must not know what is counted.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["OTHERS", "label_tenants"]

OTHERS = "_others"
"""No tenant can have this name: a tenant's begins with a letter or a digit."""


def label_tenants(names: Iterable[str], most: int) -> dict[str, str]:
    """The label of each tenant.

    Args:
        names: All tenants, each at the place that it has had from the first time on; new ones come last.
        most: How many have a label of their own.
    """
    return {name: name if index < most else OTHERS for index, name in enumerate(names)}
