"""Every bound of the client is a positive number with a documented reason."""

from __future__ import annotations

import attrs
import pytest

from seedance_sdk.limits import Limits


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_refuses_what_bounds_nothing(name: str, value: float) -> None:
    """A bound of zero or NaN would wait for ever or never; it is refused when it is made."""
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Limits)])
def test_limits_documents_each_bound(name: str) -> None:
    """No bound without a line that says why."""
    assert f"        {name}: " in (Limits.__doc__ or "") or f"    {name}: " in (Limits.__doc__ or "")
