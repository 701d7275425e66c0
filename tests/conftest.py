"""The plugin of this suite: see the modules of tests/fixtures."""

pytest_plugins = ["fixtures.layers", "fixtures.postgres", "fixtures.shares", "fixtures.cluster", "fixtures.images"]
