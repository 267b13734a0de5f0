"""Tests of `seedance_server.metrics.tenant_labels`."""

import pytest

from seedance_server.metrics.tenant_labels import OTHERS, label_tenants
from seedance_server.tenants import read_tenant


def test_tenants_beyond_the_first_few_share_a_label() -> None:
    """However many there are, the series are as many as the operator said."""
    names = [f"t{number}" for number in range(1000)]
    labels = label_tenants(names, 3)
    assert [labels[name] for name in names[:4]] == ["t0", "t1", "t2", OTHERS]
    assert len(set(labels.values())) == 4
    assert set(label_tenants(names, 0).values()) == {OTHERS}


def test_tenants_keep_their_label_when_more_come() -> None:
    """A counter that changed hands would jump."""
    before = label_tenants(["a", "b"], 2)
    assert before.items() <= label_tenants(["a", "b", "c"], 2).items()


def test_no_tenant_can_be_called_like_the_others() -> None:
    """Or its figures would be everybody's."""
    with pytest.raises(ValueError, match="name"):
        read_tenant(OTHERS, {})
