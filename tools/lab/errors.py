"""The one error of the lab: says what is missing and what to do about it."""


class LabError(RuntimeError):
    """Something the lab needs is missing or failed; the text names the remedy."""
