"""The plugin of this suite: see the modules of tests/fixtures. Random examples are the same in each run, but in `make test-long`; none has a deadline."""

import hypothesis
import pytest

pytest_plugins = [
    "fixtures.layers",
    "fixtures.postgres",
    "fixtures.logins",
    "fixtures.shares",
    "fixtures.cluster",
    "fixtures.images",
]

hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.register_profile("the same ones", deadline=None, derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    """A red run says something of the change, not of its luck; what chance finds in the long run becomes a test."""
    hypothesis.settings.load_profile("the same ones" if config.getoption("markexpr") else "no deadline")
