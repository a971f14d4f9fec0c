"""Define the service's errors: their names in both protocols, their HTTP status, their causes.

Names and codes: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/ (Errors of
each operation, and CommonErrors).
"""

import logging
from typing import NamedTuple

from django.db import Error as DatabaseFailure
from django.http import UnreadablePostError

from channels_app.core.encryption import KeyMissing
from channels_app.core.errors import BrokerError

SERVICE = "com.amazonaws.sqs#"
FRAMEWORK = "com.amazon.coral.service#"
"""Prefix of errors in the JSON protocol: those of the service, and those common to AWS services."""
NAMES = {
    400: "MalformedInput",
    403: "AccessDenied",
    404: "QueueDoesNotExist",
    411: "MalformedInput",
    413: "RequestEntityTooLarge",
    429: "RequestThrottled",
    503: "ServiceUnavailable",
    507: "ServiceUnavailable",
}
"""The name of a BrokerError by its status; of any other, InvalidParameterValue."""
log = logging.getLogger(__name__)


class ErrorKind(NamedTuple):
    """One kind of error."""

    shape: str
    """Its name in the JSON protocol (``__type``)."""
    query_code: str
    """Its code in the Query protocol, which ``x-amzn-query-error`` repeats in the JSON protocol."""
    status: int = 400
    """HTTP status in the Query protocol. In the JSON protocol it is 400, except for ``SHARED``."""


SHARED = {
    "AccessDenied": ErrorKind(FRAMEWORK + "AccessDeniedException", "AccessDenied", 403),
    "IncompleteSignature": ErrorKind(
        FRAMEWORK + "IncompleteSignatureException", "IncompleteSignature"
    ),
    "InternalFailure": ErrorKind(FRAMEWORK + "InternalFailure", "InternalFailure", 500),
    "InvalidAction": ErrorKind(FRAMEWORK + "UnknownOperationException", "InvalidAction"),
    "InvalidClientTokenId": ErrorKind(
        FRAMEWORK + "UnrecognizedClientException", "InvalidClientTokenId", 403
    ),
    "MalformedInput": ErrorKind(FRAMEWORK + "SerializationException", "MalformedInput"),
    "MissingAuthenticationToken": ErrorKind(
        FRAMEWORK + "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403
    ),
    "RequestEntityTooLarge": ErrorKind(
        FRAMEWORK + "RequestEntityTooLargeException", "RequestEntityTooLarge", 413
    ),
    "ServiceUnavailable": ErrorKind(
        FRAMEWORK + "ServiceUnavailableException", "ServiceUnavailable", 503
    ),
    "SignatureDoesNotMatch": ErrorKind(
        FRAMEWORK + "InvalidSignatureException", "SignatureDoesNotMatch", 403
    ),
}


def _own(name: str, code: str = "", status: int = 400) -> ErrorKind:
    return ErrorKind(SERVICE + name, code or name, status)


def _prefixed(name: str, code: str = "") -> ErrorKind:
    return _own(name, f"AWS.SimpleQueueService.{code or name}")


KINDS = {
    "BatchEntryIdsNotDistinct": _prefixed("BatchEntryIdsNotDistinct"),
    "BatchRequestTooLong": _prefixed("BatchRequestTooLong"),
    "EmptyBatchRequest": _prefixed("EmptyBatchRequest"),
    "InvalidAddress": _own("InvalidAddress", status=404),
    "InvalidAttributeName": _own("InvalidAttributeName"),
    "InvalidAttributeValue": _own("InvalidAttributeValue"),
    "InvalidBatchEntryId": _prefixed("InvalidBatchEntryId"),
    "InvalidMessageContents": _own("InvalidMessageContents"),
    "InvalidParameterValue": _own("InvalidParameterValueException", "InvalidParameterValue"),
    "MessageNotInflight": _prefixed("MessageNotInflight"),
    "MissingParameter": _own("MissingRequiredParameterException", "MissingParameter"),
    "OverLimit": _own("OverLimit", status=403),
    "PurgeQueueInProgress": _prefixed("PurgeQueueInProgress"),
    "QueueDoesNotExist": _prefixed("QueueDoesNotExist", "NonExistentQueue"),
    "QueueNameExists": _own("QueueNameExists", "QueueAlreadyExists"),
    "ReceiptHandleIsInvalid": _own("ReceiptHandleIsInvalid", status=404),
    "RequestThrottled": _own("RequestThrottled", status=403),
    "ResourceNotFoundException": _own("ResourceNotFoundException", status=404),
    "TooManyEntriesInBatchRequest": _prefixed("TooManyEntriesInBatchRequest"),
    "UnsupportedOperation": _prefixed("UnsupportedOperation"),
}


class SqsError(Exception):
    """An error of the service."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        """A key of ``KINDS`` or ``SHARED``."""
        self.message = message

    @property
    def kind(self) -> ErrorKind:
        """Its names and status."""
        return KINDS.get(self.name) or SHARED[self.name]

    @property
    def json_status(self) -> int:
        """HTTP status in the JSON protocol."""
        return 400 if self.name in KINDS else self.kind.status

    @property
    def is_senders(self) -> bool:
        """Whether the caller must change the request; otherwise a retry may succeed."""
        return self.kind.status < 500


def of(failure: Exception) -> SqsError:
    """Return the service's error for any failure, which is logged if it is a bug."""
    if isinstance(failure, SqsError):
        return failure
    if isinstance(failure, BrokerError):
        name = NAMES.get(failure.status, "InvalidParameterValue")
        return no_queue() if name == "QueueDoesNotExist" else SqsError(name, failure.detail)
    if isinstance(failure, KeyMissing | DatabaseFailure):
        log.warning("sqs: %s", failure)
        detail = "The request has failed due to a temporary failure of the server."
        return SqsError("ServiceUnavailable", detail)
    if isinstance(failure, UnreadablePostError | OSError):
        return SqsError("MalformedInput", "The request ended before its body did.")
    log.error("sqs: an operation failed", exc_info=failure)
    return SqsError("InternalFailure", "The request processing has failed because of an error.")


def invalid(parameter: str, value: object, reason: str) -> SqsError:
    """Return the error for an invalid parameter."""
    text = f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"
    return SqsError("InvalidParameterValue", text)


def no_queue() -> SqsError:
    """Return the error for a queue that does not exist, or not for this caller."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def missing(parameter: str) -> SqsError:
    """Return the error for a missing parameter."""
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")
