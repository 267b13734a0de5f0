"""The garbage collector's pause while a model is loaded."""

import gc
import weakref

import pytest

from seedance_server.engine.collector import paused_collector, spare_what_is_loaded, spared_so_far


class _Cycle:
    def __init__(self):
        self.itself = self


def test_collector_rests_inside_and_works_after():
    """Loading is what it rests for: a server without it would grow for ever."""
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collector_works_again_after_a_failure():
    """A model that can't be loaded changes nothing for whoever tried."""
    with pytest.raises(ValueError, match="broken"), paused_collector():
        raise ValueError("broken")
    assert gc.isenabled()


def test_collector_stays_off_where_it_was_off():
    """The pause takes back no decision of somebody else."""
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_came_before_is_left_alone_and_only_so_long():
    """A cycle of before is let go of at the door, and in the end all is as it was."""
    kept: list[object] = []
    cycle = _Cycle()
    lost = weakref.ref(cycle)
    del cycle
    with spared_so_far():
        assert lost() is None
        assert not any(each is kept for each in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(each is kept for each in gc.get_objects())


def test_what_is_loaded_is_not_walked_again():
    """A full collection is a pause for everybody's tokens; what comes later is still collected."""
    before = gc.get_threshold()
    try:
        spare_what_is_loaded()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > before[0]
        assert all(gc.get_threshold())
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
