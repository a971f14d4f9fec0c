"""Handle a request of an SQS client: authenticate it, run the operation and respond."""

import re
import uuid
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from django.db import close_old_connections

from channels_app import origin
from channels_app.conf import conf
from channels_app.database import clock
from channels_app.ingest.body import read_body
from channels_app.registry import authentication
from delivery.sqs import errors, management, messages, moves, protocol, signature
from delivery.sqs.context import Context, ResultLater
from delivery.sqs.errors import SqsError

MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""A batch of 1 MiB with every second character escaped as six in JSON, and attributes in base64."""
_QUEUE = re.compile(r"/[0-9]{12}/[A-Za-z0-9._-]{1,100}")
OPERATIONS: Mapping[str, Callable[[Context, dict[str, Any]], dict[str, Any]]] = {
    "AddPermission": management.refuse_permission,
    "CancelMessageMoveTask": moves.cancel,
    "ChangeMessageVisibility": messages.change_visibility,
    "ChangeMessageVisibilityBatch": messages.change_visibility_batch,
    "CreateQueue": management.create,
    "DeleteMessage": messages.delete,
    "DeleteMessageBatch": messages.delete_batch,
    "DeleteQueue": management.delete,
    "GetQueueAttributes": management.get_attributes,
    "GetQueueUrl": management.get_url,
    "ListDeadLetterSourceQueues": management.list_sources,
    "ListMessageMoveTasks": moves.list_tasks,
    "ListQueueTags": management.list_tags,
    "ListQueues": management.list_queues,
    "PurgeQueue": management.purge,
    "ReceiveMessage": messages.receive,
    "RemovePermission": management.refuse_permission,
    "SendMessage": messages.send,
    "SendMessageBatch": messages.send_batch,
    "SetQueueAttributes": management.set_attributes,
    "StartMessageMoveTask": moves.start,
    "TagQueue": management.tag,
    "UntagQueue": management.untag,
}


class HandlerResponse(NamedTuple):
    """A response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    is_read: bool
    """Whether the request's body was read, so that the connection can be reused."""


DeferResponse: TypeAlias = Callable[[HandlerResponse, Callable[[], object]], bool]
"""Like `channels_app.api.fast_path.DeferResponse`."""
Defer: TypeAlias = Callable[[], DeferResponse]


class _Signer(NamedTuple):
    """The key id of a request whose signature is not verified yet.

    Anybody can send a key id, so reading its body must not use the limits of the key's owner.
    """

    key_id: str

    @property
    def owner(self) -> Hashable:
        """The limit's holder, the only one that slow bodies affect."""
        return "signed", self.key_id


def is_meant(meta: Mapping[str, Any]) -> bool:
    """Whether a request is for SQS: a POST to ``/`` or to a queue's URL, or a presigned GET."""
    path = meta["PATH_INFO"]
    if path != "/" and not _QUEUE.fullmatch(path):
        return False
    return meta["REQUEST_METHOD"] == "POST" or "X-Amz-Signature=" in meta.get("QUERY_STRING", "")


def answer(meta: Mapping[str, Any], defer: Defer | None = None) -> HandlerResponse:
    """Return the response to the request with this WSGI environment. Raises nothing.

    With ``defer`` a long poll is answered later, and the return value is not sent.
    """
    request_id = str(uuid.uuid4())
    origin.current.set(origin.of("sqs", meta))
    body: list[bytes] = []
    try:
        call, result = _call(meta, body, defer, request_id)
        done = _done(call, result, request_id)
    except Exception as failure:
        done = _refused(failure, meta, request_id)
    finally:
        close_old_connections()
    return done._replace(is_read=bool(body))


def _call(
    meta: Mapping[str, Any], read: list[bytes], defer: Defer | None, request_id: str
) -> tuple[protocol.Call, dict[str, Any]]:
    signed = signature.read(meta)
    credentials = authentication.sigv4_secret(signed.key_id)
    if credentials is None:
        detail = "The security token included in the request is invalid."
        raise SqsError("InvalidClientTokenId", detail)
    principal, secret = credentials

    def check(body: bytes) -> None:
        # The signature includes the hash of the whole body.
        signature.verify(signed, secret, meta, body, clock.now())

    sender, reader = _Signer(signed.key_id), meta["wsgi.input"].read
    body = read_body(sender, meta, reader, MAX_REQUEST_BYTES, check=check)
    read.append(body)
    check(body)
    authentication.note_use(principal.key_id)
    call = protocol.read(meta, body)
    operation = OPERATIONS.get(call.operation)
    if operation is None:
        detail = f"The action {call.operation[:100]} is not valid for this endpoint."
        raise SqsError("InvalidAction", detail)
    later = defer and _deferring(defer, call, meta, request_id)
    context = Context(principal, signed.region, _base_url(meta), later)
    return call, operation(context, call.parameters)


def _deferring(
    defer: Defer, call: protocol.Call, meta: Mapping[str, Any], request_id: str
) -> Callable[[], ResultLater]:
    """Return a callback that postpones the response, and later sends the result or an error."""

    def begin() -> ResultLater:
        answer_later = defer()

        def answer(make: Callable[[], dict[str, Any]], confirm: Callable[[], object]) -> bool:
            try:
                done = _done(call, make(), request_id)
            except Exception as failure:
                answer_later(_refused(failure, meta, request_id), bool)
                return False
            return answer_later(done, confirm)

        return answer

    return begin


def _done(call: protocol.Call, result: dict[str, Any], request_id: str) -> HandlerResponse:
    kind = protocol.JSON if call.is_json else protocol.XML
    headers = [("Content-Type", kind), ("x-amzn-RequestId", request_id)]
    return HandlerResponse(200, headers, protocol.write(call, result, request_id), is_read=True)


def _refused(failure: Exception, meta: Mapping[str, Any], request_id: str) -> HandlerResponse:
    error, as_json = errors.of(failure), protocol.is_json(meta)
    headers = [
        ("Content-Type", protocol.JSON if as_json else protocol.XML),
        ("x-amzn-RequestId", request_id),
    ]
    if as_json:
        who = "Sender" if error.is_senders else "Receiver"
        headers.append(("x-amzn-query-error", f"{error.kind.query_code};{who}"))
    status = error.json_status if as_json else error.kind.status
    text = protocol.write_error(error, as_json=as_json, request_id=request_id)
    return HandlerResponse(status, headers, text, is_read=True)


def _base_url(meta: Mapping[str, Any]) -> str:
    """Return the URL at which the caller reached the broker, so that queue URLs work for it."""
    public, host = urlsplit(conf().public_url), meta["HTTP_HOST"]
    scheme = public.scheme if host == public.netloc else meta["wsgi.url_scheme"]
    return f"{scheme}://{host}"
