"""Check message attributes, compute their MD5, and store them with a message.

https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-message-metadata.html
"""

import base64
import hashlib
import json
import re
from binascii import Error as BadBase64
from collections.abc import Collection, Mapping
from typing import NamedTuple

from channels_app.core import http, names
from delivery.core.signing import DEAD_LETTER_PREFIX
from delivery.sqs.errors import SqsError

MAX_ATTRIBUTES = 10
MAX_NAME_LENGTH = 256
PACKED = "Sqs-Message-Attributes"
"""The header with all attributes, as JSON, that cannot be headers of their own."""
EVENT_TYPE, CONTENT_TYPE = "Hookstation-Event-Type", "Content-Type"
"""Attributes that set a message's event type and content type."""
TRACE = "X-Amzn-Trace-Id"
"""The header with the message system attribute AWSTraceHeader."""
ENCODING = "Content-Transfer-Encoding"
"""Marks a body that is not text and was received in base64 (RFC 2045)."""
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_TYPE = re.compile(r"(String|Number|Binary)(?:\.\S{1,248})?")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(?:; ?charset=[\w-]+)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NO_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Attribute(NamedTuple):
    """One message attribute, or one of the message system attributes."""

    data_type: str
    value: str | bytes

    @property
    def raw(self) -> bytes:
        """The value's bytes."""
        return self.value if isinstance(self.value, bytes) else self.value.encode()


Attributes = Mapping[str, Attribute]


def is_text(text: str) -> bool:
    """Whether a body or a value has only characters that the service accepts."""
    return _NO_TEXT.search(text) is None


def read(given: object) -> dict[str, Attribute]:
    """Parse a request's attributes by name. Raises SqsError."""
    if not isinstance(given, dict):
        raise SqsError("MalformedInput", "Message attributes must be a map.")
    if len(given) > MAX_ATTRIBUTES:
        detail = f"Number of message attributes [{len(given)}] exceeds the allowed maximum [10]."
        raise SqsError("InvalidParameterValue", detail)
    return {name: _read(name, value) for name, value in given.items()}


def read_system(given: object) -> dict[str, Attribute]:
    """Parse a request's message system attributes: at most a trace header. Raises SqsError."""
    attributes = read(given)
    for name, attribute in attributes.items():
        if name != "AWSTraceHeader":
            raise _invalid(name, "there is no such message system attribute")
        if attribute.data_type != "String":
            raise _invalid(name, "its type must be String")
        if fault := http.settable(TRACE, str(attribute.value)):
            raise _invalid(name, fault)
    return attributes


def size(attributes: Attributes) -> int:
    """Return the bytes that count towards a message's limit: names, types and values."""
    return sum(
        len(name.encode()) + len(attribute.data_type.encode()) + len(attribute.raw)
        for name, attribute in attributes.items()
    )


def md5(attributes: Attributes) -> str:
    """Return the MD5 of attributes, which clients verify.

    It covers, ordered by name: name, type, a byte for text (1) or bytes (2), and value. A length of
    four bytes precedes each name, type and value.
    """
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        for part in (name.encode(), attribute.data_type.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update(b"\x02" if isinstance(attribute.value, bytes) else b"\x01")
        digest.update(len(attribute.raw).to_bytes(4, "big") + attribute.raw)
    return digest.hexdigest()


def show(attributes: Attributes) -> dict[str, dict[str, str]]:
    """Represent attributes in a response."""
    return {
        name: {
            "BinaryValue": base64.b64encode(attribute.value).decode(),
            "DataType": attribute.data_type,
        }
        if isinstance(attribute.value, bytes)
        else {"StringValue": attribute.value, "DataType": attribute.data_type}
        for name, attribute in attributes.items()
    }


def choose(attributes: Attributes, wanted: Collection[str]) -> dict[str, Attribute]:
    """Return the attributes of ``MessageAttributeNames``: names, prefixes like ``a.*``, or all."""
    if "All" in wanted or ".*" in wanted:
        return dict(attributes)
    prefixes = tuple(name[:-1] for name in wanted if name.endswith(".*"))
    return {
        name: attribute
        for name, attribute in attributes.items()
        if name in wanted or (prefixes and name.startswith(prefixes))
    }


def event_type(attributes: Attributes) -> str:
    """Return the event type from the attributes; '' if absent or invalid."""
    given = attributes.get(EVENT_TYPE)
    value = str(given.value) if given and given.data_type == "String" else ""
    return "" if names.event_type(value) else value


def content_type(attributes: Attributes) -> str:
    """Return the content type from the attributes; '' if absent or invalid."""
    given = attributes.get(CONTENT_TYPE)
    value = str(given.value) if given and given.data_type == "String" else ""
    return value if _MEDIA_TYPE.fullmatch(value) else ""


def to_headers(attributes: Attributes, system: Attributes) -> dict[str, str]:
    """Convert attributes to headers of a stored message, except those that are fields of it.

    A text that is valid in a header becomes a header of the same name, which push consumers and the
    REST API see. The others are packed into one header.
    """
    stored: dict[str, str] = {}
    packed: dict[str, dict[str, str]] = {}
    taken: set[str] = set()
    fields = {EVENT_TYPE: event_type(attributes), CONTENT_TYPE: content_type(attributes)}
    for name, attribute in attributes.items():
        if fields.get(name):
            continue
        canonical = http.canonical(name)
        is_plain = attribute.data_type == "String" and isinstance(attribute.value, str)
        if (
            not is_plain
            or canonical in taken
            or canonical in {PACKED.lower(), TRACE.lower()}
            or attribute.value != str(attribute.value).strip()
            or http.forwardable(name, str(attribute.value))
        ):
            packed |= show({name: attribute})
        else:
            taken.add(canonical)
            stored[name] = str(attribute.value)
    if packed:
        stored[PACKED] = json.dumps(packed, separators=(",", ":"))
    if trace := system.get("AWSTraceHeader"):
        stored[TRACE] = str(trace.value)
    return stored


def of_message(stored: Mapping[str, str], kind: str, media_type: str) -> dict[str, Attribute]:
    """Return the attributes of a stored message, published through SQS or otherwise."""
    attributes = {
        name: Attribute("String", value)
        for name, value in stored.items()
        if value and name not in {PACKED, TRACE} and not name.startswith(DEAD_LETTER_PREFIX)
    }
    for name, value in ((EVENT_TYPE, kind), (CONTENT_TYPE, media_type)):
        if value:
            attributes[name] = Attribute("String", value)
    try:
        packed = json.loads(stored.get(PACKED, "{}"))
        attributes |= {name: _read(name, value) for name, value in packed.items()}
    except (ValueError, AttributeError, SqsError):
        # A REST producer may send any text under this name; then it is an ordinary header.
        attributes[PACKED] = Attribute("String", stored[PACKED])
    return attributes


def _read(name: str, value: object) -> Attribute:
    if not (len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name)):
        raise _invalid(name[:MAX_NAME_LENGTH], "the name has letters, digits, '_', '-' and '.'")
    if name.lower().startswith(("aws.", "amazon.")):
        raise _invalid(name, "names that begin with AWS. or Amazon. are reserved")
    if not isinstance(value, dict):
        raise _invalid(name, "a structure is needed")
    if value.get("StringListValues") or value.get("BinaryListValues"):
        detail = "Message attribute list values in SendMessage operation are not supported."
        raise SqsError("UnsupportedOperation", detail)
    data_type = value.get("DataType")
    match = _TYPE.fullmatch(data_type) if isinstance(data_type, str) else None
    if match is None:
        raise _invalid(name, "its type must be String, Number or Binary")
    kind = match[1]
    content = value.get("BinaryValue" if kind == "Binary" else "StringValue")
    if not isinstance(content, str) or not content:
        raise _invalid(name, f"it must contain a non-empty value of type {kind}")
    if kind == "Binary":
        try:
            return Attribute(match[0], base64.b64decode(content, validate=True))
        except (BadBase64, ValueError):
            raise _invalid(name, "BinaryValue is not base64") from None
    if not is_text(content):
        raise _invalid(name, "it has characters that are not allowed")
    if kind == "Number" and not _NUMBER.fullmatch(content):
        detail = f"Could not cast message attribute '{name}' value to number."
        raise SqsError("InvalidParameterValue", detail)
    return Attribute(match[0], content)


def _invalid(name: str, reason: str) -> SqsError:
    return SqsError(
        "InvalidParameterValue", f"The message attribute '{name}' is invalid: {reason}."
    )
