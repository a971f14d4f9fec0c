"""Read and write both protocols of the service: AWS JSON 1.0, and Query with XML responses.

Requests of both have one form, that of the JSON protocol: the operation's name and its parameters.
https://smithy.io/2.0/aws/protocols/aws-json-1_0-protocol.html,
https://smithy.io/2.0/aws/protocols/aws-query-protocol.html
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from delivery.sqs.errors import SqsError

JSON = "application/x-amz-json-1.0"
XML = "text/xml"
TARGET = "AmazonSQS."
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
MAX_FIELDS = 2000
"""Maximum fields of a Query request: ten messages with ten attributes each have 450."""
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Parameters = dict[str, Any]

_NUMBERS = frozenset(
    (
        *("DelaySeconds", "MaxNumberOfMessages", "MaxNumberOfMessagesPerSecond", "MaxResults"),
        *("VisibilityTimeout", "WaitTimeSeconds"),
    )
)
_LISTS = {
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
}
"""Flattened lists of strings: name in the Query protocol, name in the JSON protocol."""
_MAPS = {
    "Attribute": ("Attributes", "Name"),
    "MessageAttribute": ("MessageAttributes", "Name"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name"),
    "Tag": ("Tags", "Key"),
}
"""Flattened maps: both names, and the name of their keys."""
_ELEMENTS = {
    "Attributes": ("Attribute", "Name"),
    "MessageAttributes": ("MessageAttribute", "Name"),
    "Tags": ("Tag", "Key"),
    "Messages": ("Message", ""),
    "QueueUrls": ("QueueUrl", ""),
    "queueUrls": ("QueueUrl", ""),
    "Failed": ("BatchResultErrorEntry", ""),
}
"""Maps and lists of responses: the XML element of an entry, and of its key."""


class Call(NamedTuple):
    """The operation and parameters of a request in either protocol."""

    operation: str
    parameters: Parameters
    is_json: bool


def is_json(meta: Mapping[str, Any]) -> bool:
    """Whether the request with this WSGI environment uses the JSON protocol."""
    return "HTTP_X_AMZ_TARGET" in meta


def read(meta: Mapping[str, Any], body: bytes) -> Call:
    """Parse a request's operation and parameters. Raises SqsError."""
    return _read_json(meta, body) if is_json(meta) else _read_query(meta, body)


def write(call: Call, result: Mapping[str, Any], request_id: str) -> bytes:
    """Return the response body of an operation."""
    if call.is_json:
        return json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode()
    name = call.operation
    inner = "".join(_element(key, value, name) for key, value in result.items())
    return (
        f'<?xml version="1.0"?><{name}Response xmlns="{NAMESPACE}">'
        f"<{name}Result>{inner}</{name}Result>"
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        f"</{name}Response>"
    ).encode()


def write_error(error: SqsError, *, as_json: bool, request_id: str) -> bytes:
    """Return the response body of an error."""
    if as_json:
        return json.dumps({"__type": error.kind.shape, "message": error.message}).encode()
    who = "Sender" if error.is_senders else "Receiver"
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{who}</Type>'
        f"<Code>{error.kind.query_code}</Code><Message>{_text(error.message)}</Message><Detail/>"
        f"</Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def _read_json(meta: Mapping[str, Any], body: bytes) -> Call:
    target = meta["HTTP_X_AMZ_TARGET"]
    try:
        document = json.loads(body.decode() or "{}")
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise SqsError("MalformedInput", "The body is not JSON.") from None
    if not isinstance(document, dict):
        raise SqsError("MalformedInput", "The body must be a JSON object.")
    # null means absent.
    parameters = {name: value for name, value in document.items() if value is not None}
    # The only parameter with a lower-case name in the service's model.
    if "tags" in parameters:
        parameters.setdefault("Tags", parameters.pop("tags"))
    return Call(target.removeprefix(TARGET), parameters, True)


def _read_query(meta: Mapping[str, Any], body: bytes) -> Call:
    try:
        sent = body.decode()
        texts = [meta.get("QUERY_STRING", ""), sent]
        pairs = [
            pair
            for text in texts
            for pair in parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
            )
        ]
    except ValueError:
        raise SqsError("MalformedInput", "The body is no form in UTF-8.") from None
    fields = {name: value for name, value in pairs if not name.startswith("X-Amz-")}
    operation = fields.pop("Action", "")
    fields.pop("Version", None)
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        *above, last = name.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise SqsError("MalformedInput", f"{name} contradicts another parameter.")
        node[last] = value
    parameters = _structure(tree, operation)
    if "QueueUrl" not in parameters and meta["PATH_INFO"].count("/") == 2:
        parameters["QueueUrl"] = meta["PATH_INFO"]  # old clients call the queue's own URL
    return Call(operation, parameters, False)


def _structure(tree: Mapping[str, Any], operation: str) -> Parameters:
    parameters: Parameters = {}
    for name, value in tree.items():
        if name == f"{operation}RequestEntry":
            parameters["Entries"] = [_structure(entry, "") for entry in _entries(name, value)]
        elif name in _LISTS and isinstance(value, dict):
            parameters[_LISTS[name]] = [str(entry) for entry in _in_order(value)]
        elif name in _MAPS and isinstance(value, dict):
            into, key = _MAPS[name]
            entries = list(_entries(name, value))
            if any(key not in entry for entry in entries):
                raise SqsError("MalformedInput", f"An entry of {name} has no {key}.")
            parameters[into] = {str(entry[key]): entry.get("Value", "") for entry in entries}
        elif name in _NUMBERS:
            parameters[name] = _number(name, value)
        else:
            parameters[name] = value
    return parameters


def _entries(name: str, value: Any) -> Iterable[dict[str, Any]]:
    for entry in _in_order(value) if isinstance(value, dict) else [value]:
        if not isinstance(entry, dict):
            raise SqsError("MalformedInput", f"{name} must be a list of structures.")
        yield entry


def _in_order(value: Mapping[str, Any]) -> list[Any]:
    return [value[key] for key in sorted(value, key=lambda name: (len(name), name))]


def _number(name: str, value: Any) -> int:
    text = str(value)
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise SqsError("MalformedInput", f"{name} must be a whole number.")
    return int(text)


def _element(name: str, value: Any, operation: str) -> str:
    entry, key = _ELEMENTS.get(name, (name, ""))
    if name == "Successful":
        entry = f"{operation}ResultEntry"
    elif name == "Results":
        entry = "ListMessageMoveTasksResultEntry"
    if isinstance(value, Mapping):
        if key:
            pairs = [(_text(name), _element("Value", item, "")) for name, item in value.items()]
            return "".join(
                f"<{entry}><{key}>{name}</{key}>{text}</{entry}>" for name, text in pairs
            )
        inner = "".join(_element(part, item, operation) for part, item in value.items())
        return f"<{entry}>{inner}</{entry}>"
    if isinstance(value, list):
        return "".join(_element(entry, item, operation) for item in value)
    if isinstance(value, bool):
        return f"<{entry}>{str(value).lower()}</{entry}>"
    return f"<{entry}>{_text(str(value))}</{entry}>"


def _text(text: str) -> str:
    # Remove characters that XML lacks, which the REST API accepts. Escape CR, which parsers would
    # change.
    return escape(_NO_XML.sub("\ufffd", text), {"\r": "&#xD;"})
