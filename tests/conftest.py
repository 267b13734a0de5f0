"""Settings of every test run: no network for models, nothing of the user's own, how hard Hypothesis tries.

The last is HYPOTHESIS_PROFILE.
"""

import itertools
import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["SEEDANCE_CONFIG"] = os.devnull  # whatever this machine's own servers are set to

# No deadlines: a slow machine is no failure. `dev` and `ci` try the same examples each time, so that a change
# is judged by what it changed; `nightly` looks for new ones.
_SLOW_INPUT = [HealthCheck.too_slow]
_ALIKE = settings(deadline=None, suppress_health_check=_SLOW_INPUT, derandomize=True, database=None)
settings.register_profile("dev", _ALIKE, max_examples=50)
settings.register_profile("ci", _ALIKE, max_examples=200)
settings.register_profile("nightly", max_examples=5000, deadline=None, suppress_health_check=_SLOW_INPUT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

_STATE = tempfile.TemporaryDirectory(prefix="seedance-tests-")
_numbers = itertools.count()
os.environ["XDG_STATE_HOME"] = _STATE.name  # for fixtures that outlive a test


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test a place of its own for the journals of its servers; made only if it is used."""
    monkeypatch.setenv("XDG_STATE_HOME", os.path.join(_STATE.name, str(next(_numbers))))  # noqa: PTH118
