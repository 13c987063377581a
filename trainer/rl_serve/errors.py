"""What a client is told when a request cannot be answered: OpenAI's error shape, with one sentence."""

from __future__ import annotations

from typing import Any

INVALID, TOO_LONG = "invalid_value", "context_length_exceeded"


class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: HTTP status.
        message: one sentence.
        param: the field of the request that it is about, None: no field in particular.
        code: a word for programs.
        retry_after: whole seconds after which it is worth trying again, None: it is not said.
        version: of the policy that was to answer, None: there was none, or it is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = INVALID,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.retry_after = retry_after
        self.version: str | None = None

    @property
    def kind(self) -> str:
        """OpenAI's `type`, by status."""
        if self.status == 429:
            return "rate_limit_error"
        if self.status == 401:
            return "authentication_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, Any]:
        """The answer's JSON object."""
        about = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": about} | ({} if self.version is None else {"policy_version": self.version})
