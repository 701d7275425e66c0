"""The plugin of this suite: see the modules of tests/fixtures. Random examples are the same in each run, but in `make test-long`."""

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

hypothesis.settings.register_profile("the same ones", derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    """A red run says something of the change, not of its luck; what chance finds in the long run becomes a test."""
    if config.getoption("markexpr"):
        hypothesis.settings.load_profile("the same ones")
