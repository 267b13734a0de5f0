import attrs
import pytest

from seedance_server.engine.config import EngineConfig

_MAY_BE_NONE_AT_ALL = {"speculative_tokens"}


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(EngineConfig)])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "16"])
def test_config_refuses_a_number_that_is_not_positive_and_whole(name, value):
    """A wrong setting is found where it is made, not at the first request."""
    if name in _MAY_BE_NONE_AT_ALL and value == 0 and value is not False:
        assert getattr(EngineConfig(**{name: value}), name) == 0
        return
    with pytest.raises(ValueError, match=name):
        EngineConfig(**{name: value})


def test_config_has_a_default_for_everything():
    """An engine can be made without any settings."""
    assert EngineConfig().block_size == 16
