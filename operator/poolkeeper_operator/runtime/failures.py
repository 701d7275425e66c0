"""What can go wrong at the edge, as exceptions that the work queue logs in one line and tries again."""


class KubeError(Exception):
    """The API server refused or could not be reached; `status` is the HTTP code, 0 if there was no answer."""

    expected = True

    def __init__(self, status: int, what: str, message: str) -> None:
        super().__init__(f"{what}: {message}" if status == 0 else f"{what}: {status} {message}")
        self.status = status
        self.message = message

    @property
    def not_found(self) -> bool:
        """The object, or its namespace, is not there."""
        return self.status == 404  # noqa: PLR2004 - HTTP

    @property
    def conflict(self) -> bool:
        """Already there, or changed since it was read."""
        return self.status == 409  # noqa: PLR2004 - HTTP

    @property
    def forbidden(self) -> bool:
        """The operator lacks the right."""
        return self.status == 403  # noqa: PLR2004 - HTTP

    @property
    def senseless(self) -> bool:
        """The server understood what was sent and will never take it."""
        return self.status in {400, 413, 422}


class NotLeading(Exception):
    """A write that this process may not begin, since another one may hold the Lease (O29)."""

    expected = True
