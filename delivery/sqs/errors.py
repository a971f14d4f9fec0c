"""Errors of the service: each with its name in both protocols and its HTTP status.

Names and codes: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/
(Errors of each operation, and CommonErrors).
"""

from typing import NamedTuple

SERVICE = "com.amazonaws.sqs#"
FRAMEWORK = "com.amazon.coral.service#"
"""Whose errors the JSON protocol names: the service's own, and those of any AWS service."""


class Kind(NamedTuple):
    """One kind of error."""

    shape: str
    """Its name in the JSON protocol (``__type``)."""
    query_code: str
    """Its code in the Query protocol, which ``x-amzn-query-error`` repeats in the JSON protocol."""
    status: int = 400
    """In the Query protocol. In the JSON protocol it is 400, unless it is one of ``SHARED``."""


def _own(name: str, code: str = "", status: int = 400) -> Kind:
    return Kind(SERVICE + name, code or name, status)


def _prefixed(name: str, code: str = "") -> Kind:
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
SHARED = {
    "AccessDenied": Kind(FRAMEWORK + "AccessDeniedException", "AccessDenied", 403),
    "IncompleteSignature": Kind(FRAMEWORK + "IncompleteSignatureException", "IncompleteSignature"),
    "InternalFailure": Kind(FRAMEWORK + "InternalFailure", "InternalFailure", 500),
    "InvalidAction": Kind(FRAMEWORK + "UnknownOperationException", "InvalidAction"),
    "InvalidClientTokenId": Kind(
        FRAMEWORK + "UnrecognizedClientException", "InvalidClientTokenId", 403
    ),
    "MalformedInput": Kind(FRAMEWORK + "SerializationException", "MalformedInput"),
    "MissingAuthenticationToken": Kind(
        FRAMEWORK + "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403
    ),
    "RequestEntityTooLarge": Kind(
        FRAMEWORK + "RequestEntityTooLargeException", "RequestEntityTooLarge", 413
    ),
    "ServiceUnavailable": Kind(
        FRAMEWORK + "ServiceUnavailableException", "ServiceUnavailable", 503
    ),
    "SignatureDoesNotMatch": Kind(
        FRAMEWORK + "InvalidSignatureException", "SignatureDoesNotMatch", 403
    ),
}


class SqsError(Exception):
    """A refusal as the service words it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        """A key of ``KINDS`` or ``SHARED``."""
        self.message = message

    @property
    def kind(self) -> Kind:
        """Its names."""
        return KINDS.get(self.name) or SHARED[self.name]

    @property
    def json_status(self) -> int:
        """The HTTP status in the JSON protocol."""
        return 400 if self.name in KINDS else self.kind.status

    @property
    def is_senders(self) -> bool:
        """Whether the caller has to change something; else the same request may succeed later."""
        return self.kind.status < 500


def invalid(parameter: str, value: object, reason: str) -> SqsError:
    """A parameter that cannot be used."""
    text = f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"
    return SqsError("InvalidParameterValue", text)


def no_queue() -> SqsError:
    """The queue is not there, or not for this caller."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def missing(parameter: str) -> SqsError:
    """A parameter that has to be given."""
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")
