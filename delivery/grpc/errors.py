"""Map errors to gRPC status codes and problems. One table: ``CODES``."""

import logging
import math

import grpc
from google.protobuf.message import DecodeError

from channels_app.core.errors import Malformed, printable
from channels_app.ingest import refusals
from delivery.grpc.hookstation_pb2 import Problem

PROBLEM_KEY = "hookstation-problem-bin"
"""Key of the trailing metadata that has the serialized problem."""
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""The gRPC status code of each HTTP status that the REST API answers to the same requests."""
HEADERS = {
    "Content-Type": "content_type",
    "Idempotency-Key": "idempotency_key",
    "Authorization": "authorization",
}
"""Headers of REST that an error may name, and the fields in their place."""
log = logging.getLogger(__name__)


def problem_of(error: Exception) -> Problem:
    """Return the problem for an error, which is logged if it is a bug."""
    if isinstance(error, DecodeError):
        error = Malformed("malformed_body", "The request is not the message of its call.")
    refusal = refusals.of(error)
    if refusal is None:
        log.error("a gRPC call failed", exc_info=error)
        detail = "The broker failed to handle the request; its log has the reason."
        return Problem(status=500, code="internal_error", detail=detail)
    return Problem(
        status=refusal.status,
        code=refusal.code,
        detail=printable(refusal.detail),
        field=printable(HEADERS.get(refusal.field, refusal.field)),
        retry_after_s=math.ceil(refusal.retry_after_s or 0),
    )


def code_of(problem: Problem) -> grpc.StatusCode:
    """Return the status code of a refused call."""
    return CODES.get(problem.status, grpc.StatusCode.UNKNOWN)
