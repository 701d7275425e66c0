"""Figures of the specification, measured side by side in one run."""
