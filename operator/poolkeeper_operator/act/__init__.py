"""Writing: manifests are built by pure functions, applied server-side, and left alone when nothing changed."""
