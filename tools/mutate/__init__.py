"""Takes one guard after the other out of the store's SQL and sees whether a test turns red (quality 3, `make mutate`)."""
