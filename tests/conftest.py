"""Settings of all tests."""

from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("rltrain", deadline=None)
settings.load_profile("rltrain")
