"""What every tier shares: hypothesis' profiles, and an environment without anyone's own settings."""

import os

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a machine may be slow, and no test of ours judges time. HYPOTHESIS_PROFILE=thorough searches longer.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_OWN_PREFIXES = ("ROLLBOOK_", "OSMOSIS_")


@pytest.fixture(autouse=True)
def environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes Rollbook's and the reference's variables, so that a developer's settings change no result.

    A test that wants one sets it with `monkeypatch.setenv`; child processes inherit what is left.
    """
    for name in list(os.environ):
        if name.startswith(_OWN_PREFIXES):
            monkeypatch.delenv(name)
