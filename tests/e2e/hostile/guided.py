"""Fuzz the parsers with atheris, which derives inputs that reach new lines of code.

python -m tests.e2e.hostile.guided FOLDER [libFuzzer's options]

This runs as its own process, because atheris never returns. ``one`` lists what a parser may do with
any input; anything else is a crash.
"""

import sys
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import atheris

with atheris.instrument_imports(include=["channels_app.core", "delivery.core"]):
    from channels_app.core import body_preview, http, ids, json_schema, keys, names, networks, times
    from delivery.core import outcome, signing

NOW = datetime(2026, 1, 31, 8, tzinfo=UTC)
SCHEMA = json_schema.compiled({"type": "object", "properties": {"n": {"type": "integer"}}})
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLjM4"  # a published example
SEEDS = (
    "https://hooks.example.com:8443/in?x=1",
    "http://[::ffff:169.254.169.254]/",
    "http://0x7f.1/",
    '"7", W/"8"',
    "order.*",
    "Sat, 31 Jan 2026 09:00:00 GMT",
    "2026-01-31T09:00:00.250Z",
    "msg_06xvz43r2p400",
    "X-Tenant: acme",
    '{"n": 1, "o": [true, null, 1e9]}',
    "a=1&b=%20c",
    "v1,bm9uZQ== v1a,bm9uZQ==",
)


def one(data: bytes) -> None:
    """Run every parser with one input."""
    text = data.decode("latin-1")
    name, _, value = text.partition(": ")
    if networks.check_url(text, allowed=()) is None:
        host = urlsplit(text).hostname or ""
        with suppress(ValueError):
            assert networks.may_call(str(ip_address(host)), ()), text
    for reader in (http.parse, times.instant, times.delay_ms):
        with suppress(ValueError):
            reader(text)
    number = ids.from_public("msg", text)
    assert number is None or ids.to_public("msg", number) == text
    if http.forwardable(name, value) is None:
        assert not {"\r", "\n", "\0"} & set(name + value)
        assert not http.is_brokers_own(name)
    for check in (names.slug, names.event_type):
        fault = check(text)
        assert fault is None or fault.endswith("."), fault
    if names.validate_pattern(text) is None:
        names.matches([text], "order.paid")
    keys.parse(text)
    body_preview.show(data, name)
    json_schema.fault(SCHEMA, data)
    wait = outcome.parse_retry_after(text, NOW)
    assert wait is None or 0 <= wait <= outcome.RETRY_AFTER_CAP_S
    signed = {"webhook-id": name, "webhook-timestamp": "1769846400", "webhook-signature": text}
    with suppress(signing.InvalidSignature, ValueError):
        signing.verify(SECRET, signed, data, NOW.timestamp())
        raise AssertionError("A signature that nobody made was taken.")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for place, seed in enumerate(SEEDS):
        (folder / str(place)).write_bytes(seed.encode())
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
