"""Publish up to a thousand messages in one transaction, with a result for each."""

from collections.abc import Iterable
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from channels_app.api import openapi, problems
from channels_app.api.authentication import principal_of
from channels_app.api.base import ApiView
from channels_app.api.views.publish import RECORD
from channels_app.conf import MAX_BATCH_ITEMS, MAX_IDEMPOTENCY_KEY, MAX_ORDERING_KEY, conf
from channels_app.core.errors import BrokerError, Invalid, Malformed, UnsupportedMediaType
from channels_app.core.sequence import MAX_NUMBER
from channels_app.database import clock
from channels_app.ingest import limits, publication, sequencing
from channels_app.ingest.accept import Publication
from channels_app.ingest.body import parse_json, read_body, whole_json
from channels_app.ingest.sequencing import Result
from channels_app.registry.cache import ChannelConfig

LINES = {"application/x-ndjson", "application/jsonl", "application/ndjson"}


ITEM = openapi.component(
    "BatchItem",
    {
        "type": "object",
        "description": "Either body or body_base64, and the options of publishMessage.",
        "properties": {
            "body": openapi.MAYBE_TEXT | {"description": "Text; stored as UTF-8."},
            "body_base64": openapi.MAYBE_TEXT | {"contentEncoding": "base64"},
            "content_type": openapi.MAYBE_TEXT,
            "idempotency_key": openapi.MAYBE_TEXT
            | {"minLength": 1, "maxLength": MAX_IDEMPOTENCY_KEY},
            "event_type": openapi.MAYBE_TEXT,
            "priority": {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
            "deliver_at": {"type": ["string", "integer", "null"]},
            "delay_ms": {"type": ["integer", "null"], "minimum": 0},
            "spread_ms": {"type": ["integer", "null"], "minimum": 0},
            "expires_at": {"type": ["string", "integer", "null"]},
            "ordering_key": openapi.MAYBE_TEXT | {"minLength": 1, "maxLength": MAX_ORDERING_KEY},
            "producer_seq": {"type": ["integer", "null"], "minimum": 0, "maximum": MAX_NUMBER},
            "headers": {
                "type": ["object", "null"],
                "additionalProperties": {"type": "string"},
            },
        },
        "additionalProperties": False,
    },
)
_REFUSED = {
    "title": "BatchRefused",
    "type": "object",
    "properties": {
        "status": {"type": "integer", "enum": [409, 422, 429]},
        "code": openapi.TEXT,
        "detail": openapi.TEXT,
        "field": openapi.TEXT,
    },
    "required": ["status", "code", "detail"],
}
_STORED = {
    "title": "BatchStored",
    "type": "object",
    "properties": {
        "status": {"type": "integer", "enum": [200, 202]},
        **RECORD["properties"],
    },
    "required": ["status", *RECORD["required"]],
}
RESULTS = openapi.component(
    "BatchResults",
    openapi.record(
        items={"type": "array", "items": {"oneOf": [_STORED, _REFUSED]}},
        accepted=openapi.WHOLE,
        duplicates=openapi.WHOLE,
        refused=openapi.WHOLE,
    ),
)


class BatchView(ApiView):
    """A batch of messages."""

    scopes = {"POST": publication.SCOPES}

    @openapi.operation(
        "publishBatch",
        "Publish a batch of messages",
        tag="Messages",
        body={
            openapi.JSON: {"type": "array", "items": ITEM, "maxItems": MAX_BATCH_ITEMS},
        },
        answers={207: RESULTS},
        errors=(400, 404, 411, 413, 415, 422, 429, 507),
        parameters=(openapi.CHANNEL,),
    )
    def post(self, request: Request, channel: str) -> Response:
        """Store up to 1,000 messages in one transaction. Invalid ones are refused one by one.

        The body is a JSON array, or `application/x-ndjson` with one item per line.
        """
        config = publication.channel_of(channel)
        producer, now = self.principal.producer, clock.now()
        producer_id = self.principal.producer_id
        limits.check(config, producer_id)
        read: list[Publication | BrokerError] = []
        for item in _items(request):
            try:
                if isinstance(item, BrokerError):
                    raise item
                read.append(publication.from_item(item, config, producer, now))
            except BrokerError as problem:
                read.append(problem)
        messages = [entry for entry in read if isinstance(entry, Publication)]
        publication.check_rate(producer, len(messages))
        stored = sequencing.accept_in_sequence(config, producer_id, messages, self.principal.owner)
        results = iter(stored)
        items = [
            _refused(entry)
            if isinstance(entry, BrokerError)
            else _representation(config, entry, next(results))
            for entry in read
        ]
        return Response({"items": items, **_sums(items)}, status=207)


def _items(request: Request) -> Iterable[Any]:
    kind = request.META.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if kind != "application/json" and kind not in LINES:
        detail = "Send application/json (an array) or application/x-ndjson (one object per line)."
        raise UnsupportedMediaType("unsupported_media_type", detail, field="Content-Type")
    most = conf().max_batch_bytes
    check = None if kind in LINES else whole_json
    body = read_body(principal_of(request), request.META, request._request.read, most, check=check)
    items = _lines(body) if kind in LINES else parse_json(body)
    if not isinstance(items, list):
        raise Malformed("malformed_body", "The body must be a JSON array of messages.")
    if len(items) > MAX_BATCH_ITEMS:
        detail = f"A batch holds at most {MAX_BATCH_ITEMS} messages; send several batches."
        raise Invalid("batch_too_large", detail)
    return items


def _lines(body: bytes) -> list[Any]:
    lines = [line for line in body.split(b"\n") if line.strip()]
    # Do not parse lines beyond the limit.
    return [_line(line) for line in lines[: MAX_BATCH_ITEMS + 1]]


def _line(line: bytes) -> Any:
    try:
        return parse_json(line)
    except BrokerError as problem:
        return problem


def _representation(channel: ChannelConfig, message: Publication, result: Result) -> dict[str, Any]:
    if isinstance(result, BrokerError):
        return _problem(result.status, result.code, result.detail, result.field)
    if result.conflict:
        return _problem(409, "idempotency_conflict", publication.CONFLICT, "idempotency_key")
    status = 200 if result.duplicate else 202
    return {"status": status, **publication.show(channel, message, result)}


def _refused(problem: BrokerError) -> dict[str, Any]:
    # 413 and 415 would concern a single message; the batch request itself was valid.
    return _problem(422, problem.code, problem.detail, problem.field)


def _problem(status: int, code: str, detail: str, field: str) -> dict[str, Any]:
    document = problems.document(status, code, detail, field=field)
    return {
        name: document[name] for name in ("status", "code", "detail", "field") if name in document
    }


def _sums(items: list[dict[str, Any]]) -> dict[str, int]:
    statuses = [item["status"] for item in items]
    accepted, duplicates = statuses.count(202), statuses.count(200)
    return {
        "accepted": accepted,
        "duplicates": duplicates,
        "refused": len(items) - accepted - duplicates,
    }
