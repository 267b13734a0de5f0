"""Settings of every test run: no network for models, and how hard Hypothesis tries (HYPOTHESIS_PROFILE)."""

import os

from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"

# No deadlines: a slow machine is no failure. `dev` is for the edit-run loop, `ci` for each change.
_SLOW_INPUT = [HealthCheck.too_slow]
settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW_INPUT)
settings.register_profile(
    "ci", max_examples=200, deadline=None, suppress_health_check=_SLOW_INPUT, derandomize=True, database=None
)
settings.register_profile("nightly", max_examples=5000, deadline=None, suppress_health_check=_SLOW_INPUT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
