"""Errors as responses: one shape, a stable code each, and no word of a prompt.

Knows nothing of how a request is answered. The shape is OpenAI's, `{"error": {"message", "type",
"param", "code"}}`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tokenmark.api.response_schemas import ErrorBody, ErrorDetail
from tokenmark.api.schemas import shown
from tokenmark.watermark.errors import CapacityError, RequestError, SamplingError

__all__ = ["ApiError", "ErrorCode", "add_error_handlers"]

_RETRY_AFTER_S: Final = 1
# What proxies log for a client that left; nobody reads the response.
_CLIENT_CLOSED_REQUEST: Final = 499


class ErrorCode(StrEnum):
    """What went wrong, for programs."""

    INVALID_REQUEST = "invalid_request"
    INVALID_JSON = "invalid_json"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    UNKNOWN_PATH = "unknown_path"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    QUEUE_FULL = "queue_full"
    SAMPLING_FAILED = "sampling_failed"
    ENGINE_STOPPED = "engine_stopped"
    INTERNAL_ERROR = "internal_error"


_STATUS: Final = {
    ErrorCode.INVALID_REQUEST: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_JSON: HTTPStatus.BAD_REQUEST,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: HTTPStatus.BAD_REQUEST,
    ErrorCode.MODEL_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ErrorCode.UNKNOWN_PATH: HTTPStatus.NOT_FOUND,
    ErrorCode.METHOD_NOT_ALLOWED: HTTPStatus.METHOD_NOT_ALLOWED,
    ErrorCode.BODY_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    ErrorCode.QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    ErrorCode.SAMPLING_FAILED: HTTPStatus.INTERNAL_SERVER_ERROR,
    ErrorCode.ENGINE_STOPPED: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.INTERNAL_ERROR: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class ApiError(Exception):
    """An error that a client is told of.

    Args:
        code: decides the status of the response too.
        message: what was wrong and the way out.
        param: name of the offending request field.
        headers: further headers of the response.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        if code is ErrorCode.QUEUE_FULL:
            self.headers["Retry-After"] = str(_RETRY_AFTER_S)

    @classmethod
    def of_engine(
        cls, error: RequestError | CapacityError | SamplingError, *, is_healthy: bool = True
    ) -> "ApiError":
        """What to tell of an error of the engine, which may have stopped."""
        if isinstance(error, RequestError):
            return cls(ErrorCode.INVALID_REQUEST, str(error), param=error.param)
        if isinstance(error, SamplingError):
            return cls(ErrorCode.SAMPLING_FAILED, str(error))
        return cls(ErrorCode.QUEUE_FULL if is_healthy else ErrorCode.ENGINE_STOPPED, str(error))

    @property
    def status(self) -> HTTPStatus:
        """The status of the response."""
        return _STATUS[self.code]

    @property
    def body(self) -> str:
        """The body of the response, as JSON."""
        if self.status is HTTPStatus.TOO_MANY_REQUESTS:
            kind = "rate_limit_error"
        elif self.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            kind = "server_error"
        else:
            kind = "invalid_request_error"
        detail = ErrorDetail(message=str(self), type=kind, param=self.param, code=self.code)
        return ErrorBody(error=detail).model_dump_json()

    def response(self) -> Response:
        """The response itself."""
        return Response(self.body, self.status, headers=self.headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Let every error of the app leave in the one shape."""

    @app.exception_handler(ApiError)
    async def _api_error(_request: Request, error: ApiError) -> Response:
        return error.response()

    @app.exception_handler(RequestError)
    async def _request_error(_request: Request, error: RequestError) -> Response:
        return ApiError.of_engine(error).response()

    @app.exception_handler(RequestValidationError)
    async def _validation_error(_request: Request, error: RequestValidationError) -> Response:
        return _of_validation(error).response()

    @app.exception_handler(HTTPException)
    async def _http_error(request: Request, error: HTTPException) -> Response:
        return _of_http(request, error).response()

    @app.exception_handler(ClientDisconnect)
    async def _disconnect(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def _defect(_request: Request, _error: Exception) -> Response:
        # The server logs the traceback; a client has no use for it.
        return ApiError(
            ErrorCode.INTERNAL_ERROR, "an internal error; see the server's log"
        ).response()


def _of_http(request: Request, error: HTTPException) -> ApiError:
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return ApiError(
                ErrorCode.UNKNOWN_PATH,
                f"nothing is served at {shown(request.url.path)}; see /openapi.json",
            )
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return ApiError(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"{shown(request.method)} is not allowed at this path; see /openapi.json",
                headers=error.headers,
            )
        case HTTPStatus.BAD_REQUEST:
            return ApiError(ErrorCode.INVALID_JSON, "the body cannot be read as JSON")
        case status:
            raise AssertionError(f"no error of this app has the status {status}")


def _of_validation(error: RequestValidationError) -> ApiError:
    """The first of the errors in one sentence; the values that broke the rules stay out of it."""
    first = error.errors()[0]
    path = _path(first["loc"][1:])
    if first["type"] == "json_invalid":
        return ApiError(
            ErrorCode.INVALID_JSON, f"the body is not JSON from character {first['loc'][1]} on"
        )
    if not path:
        return ApiError(ErrorCode.INVALID_JSON, "the body must be a JSON object")
    match first["type"]:
        case "missing":
            rule = "is required"
        case "model_type" | "model_attributes_type":
            rule = "must be an object"
        case "too_long":
            rule = f"must have {first['ctx']['max_length']} or fewer items"
        case "too_short":
            rule = f"must have {first['ctx']['min_length']} or more items"
        case _:
            rule = first["msg"].replace("Input should be", "must be")
    return ApiError(ErrorCode.INVALID_REQUEST, f"{path} {rule}", param=path)


def _path(location: Sequence[str | int]) -> str:
    """Where a value stands, as `messages[0].content`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")
