"""``manage.py publish``: every line is stored once or reported by its number."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from channels_app import conf
from channels_app.models import Channel, Message, MessageBody, Producer
from channels_app.registry import data_encryption
from delivery.management import publishing
from delivery.management.publishing import Reader, batches
from tests.support.factories import ApiKeyFactory, ChannelFactory, text_of
from tests.support.limits import a_short_disk
from tests.support.receiver import Receiver, Reply

ADDRESS = "/api/v1/channels/orders/messages/batch"
CORPUS = [
    {"event": "push", "action": "created", "body": '{"zen": "Ünïcode ✓",  "n": 1}'},
    {"event": "issue_comment", "action": "edited", "body": '{"a":2}\n'},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hooks.jsonl"


@pytest.fixture
def broker() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "FIRST_PAUSE_S", 0.01)


def write(file: Path, *items: object) -> None:
    lines = [item if isinstance(item, str) else json.dumps(item) for item in items]
    file.write_text("".join(f"{line}\n" for line in lines), "utf-8")


class Said:
    """Output and exit status of the command."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        out, err = StringIO(), StringIO()
        self.status = 0
        try:
            call_command("publish", *arguments, stdout=out, stderr=err, **options)
        except SystemExit as end:
            self.status = int(end.code or 0)
        self.out, self.err = out.getvalue(), err.getvalue()


def publish(file: Path, broker: Receiver, **options: Any) -> Said:
    key = file.with_suffix(".key")
    key.write_text("hsk_a_b\n")
    url = broker.url("")
    return Said(str(file), channel="orders", url=url, key_file=str(key), **options)


def answer(*statuses: int) -> Reply:
    """Return a response of the batch endpoint with these results."""
    items = [
        {"status": status, "duplicate": status == 200}
        if status < 300
        else {"status": status, "field": "event_type", "detail": "Nonsense."}
        for status in statuses
    ]
    return Reply(207, body=json.dumps({"items": items}).encode())


def stored() -> list[tuple[str, str, bytes]]:
    bodies = {
        row.message_id: data_encryption.decrypt_body(row.message_id, bytes(row.data))
        for row in MessageBody.objects.all()
    }
    return [
        (row.event_type, row.content_type, bodies[row.id]) for row in Message.objects.order_by("id")
    ]


# -- Reading the file ------------------------------------------------------------------------------


def read(*lines: str, **options: Any) -> list[Any]:
    return [
        line.fault or line.item for line in Reader(**options).read(line.encode() for line in lines)
    ]


def test_a_body_that_is_json_is_sent_as_its_text() -> None:
    (item,) = read('{"body": {"ü": [1, 2]}}')

    assert item == {"body": '{"ü":[1,2]}', "content_type": "application/json"}


def test_a_line_keeps_its_fields() -> None:
    given = {"body": "x", "content_type": "text/plain", "priority": 7, "headers": {"A": "b"}}

    assert read(json.dumps(given)) == [given]


def test_blank_lines_are_skipped_and_line_numbers_kept() -> None:
    reader = Reader()

    lines = list(reader.read([b"\n", b'{"body": "x"}\n', b" \n", b"nonsense\n"]))

    assert [line.number for line in lines] == [2, 4]
    assert lines[1].fault.startswith("This is not JSON")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[1]", "Each line must be a JSON object."),
        ('{"event": "a"}', "There is no body."),
        ('{"event": "a", "event_type": "b", "body": ""}', "Give either event or event_type"),
        ('{"body": "x', "This is not JSON: "),
        ('{"body": "x", "priority": NaN}', "This is not JSON: NaN is not a JSON value"),
        (f'{{"body": {"[" * 100_000}', "This JSON is nested too deeply."),
    ],
)
def test_an_invalid_line_is_reported_with_a_reason(line: str, told: str) -> None:
    (fault,) = read(line)
    assert fault.startswith(told)


def test_idempotency_keys_derive_from_line_and_position() -> None:
    line = '{"body": "x"}'

    keys = [item["idempotency_key"] for item in read(line, line, idempotent=True)]

    assert keys[0] == hashlib.sha256(b"1:" + line.encode()).hexdigest()
    assert keys[1] == hashlib.sha256(b"2:" + line.encode()).hexdigest()
    assert read('{"body": "x", "idempotency_key": "own"}', idempotent=True)[0][
        "idempotency_key"
    ] == "own"  # fmt: skip


def test_batches_are_cut_by_number_and_by_size() -> None:
    def sizes(*bodies: int, **limits: int) -> list[int]:
        lines = Reader().read(json.dumps({"body": "x" * body}).encode() for body in bodies)
        return [len(batch) for batch in batches(lines, **limits)]

    assert sizes(1, 1, 1, 1, 1, items=2) == [2, 2, 1]
    assert sizes(1000, 1000, 9000, 1, size=2500) == [2, 1, 1]
    assert sizes() == []


# -- Over HTTP -------------------------------------------------------------------------------------


def test_a_corpus_is_sent_byte_for_byte_with_the_key(file: Path, broker: Receiver) -> None:
    broker.script(ADDRESS, [answer(202, 202)])
    write(file, *CORPUS)

    said = publish(file, broker)

    (request,) = broker.requests()
    assert json.loads(request.body) == [
        {"body": item["body"], "content_type": "application/json", "event_type": item["event"]}
        for item in CORPUS
    ]
    assert request.header("Authorization") == "Bearer hsk_a_b"
    assert said.status == 0
    assert said.out.startswith("2 messages (")
    assert "The unknown field action was ignored (2 lines)." in said.err


def test_refused_messages_are_reported_by_line_and_fail_the_command(
    file: Path, broker: Receiver
) -> None:
    broker.script(ADDRESS, [answer(202, 422, 200)])
    write(file, {"body": "a"}, "nonsense", {"body": "b", "event": "!"}, {"body": "c"})

    said = publish(file, broker)

    assert said.status == 1
    assert "Line 3: event_type: Nonsense." in said.err
    assert "Line 2: This is not JSON" in said.err
    assert said.out.startswith("2 messages (")
    assert said.out.endswith("1 of them stored before, 2 refused.\n")


def test_many_refused_lines_are_counted_not_listed(file: Path, broker: Receiver) -> None:
    write(file, *["nonsense"] * 25)

    said = publish(file, broker)

    assert said.err.count("Line ") == 10
    assert "... and 15 more." in said.err
    assert broker.requests() == []


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_broker_is_retried(file: Path, broker: Receiver, status: int) -> None:
    broker.script(ADDRESS, [Reply(status), Reply(status), answer(202)])
    write(file, {"body": "x"})

    said = publish(file, broker)

    assert len(broker.requests()) == 3
    assert said.status == 0
    assert said.err.count("Trying again for up to 120 s.") == 1


def test_a_wait_in_fractions_of_a_second_is_obeyed(
    file: Path, broker: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr("time.sleep", pauses.append)
    waits = [Reply(503, headers=(("Retry-After", wait),)) for wait in ("7.5", "1000.0")]
    broker.script(ADDRESS, [*waits, answer(202)])
    write(file, {"body": "x"})

    assert publish(file, broker).status == 0
    assert pauses == [8, publishing.MAX_PAUSE_S]


def test_retries_are_bounded(file: Path, broker: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing.Api, "__init__", _impatient(publishing.Api.__init__))
    broker.script(ADDRESS, [Reply(503, body=b'{"detail": "No database."}')])
    write(file, {"body": "x"})

    said = publish(file, broker)

    assert said.status == 1
    assert "Stopped after 0 lines: No database. (503)" in said.err


def _impatient(init: Any) -> Any:
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options, retry_timeout_s=0.1)

    return __init__


def test_a_batch_that_is_too_large_is_halved(file: Path, broker: Receiver) -> None:
    broker.script(ADDRESS, [Reply(413), answer(202), Reply(413), answer(202), answer(202)])
    write(file, *({"body": str(number)} for number in range(3)))

    said = publish(file, broker)

    sent = [[item["body"] for item in json.loads(r.body)] for r in broker.requests()]
    assert sent == [["0", "1", "2"], ["0"], ["1", "2"], ["1"], ["2"]]
    assert said.status == 0


def test_an_invalid_key_stops_with_the_brokers_message(file: Path, broker: Receiver) -> None:
    broker.script(ADDRESS, [Reply(401, body=b'{"detail": "The key is unknown."}')])
    write(file, *({"body": str(number)} for number in range(5)))

    said = publish(file, broker, batch=2)

    assert said.status == 1
    assert "Stopped after 0 lines: The key is unknown. (401)" in said.err
    assert len(broker.requests()) == 1


def test_a_redirect_is_not_followed(file: Path, broker: Receiver) -> None:
    broker.script(ADDRESS, [Reply(302, headers=(("Location", broker.url("/elsewhere")),))])
    write(file, {"body": "x"})

    said = publish(file, broker)

    assert said.status == 1
    assert "answered 302" in said.err
    assert len(broker.requests()) == 1


def test_a_broken_connection_is_tried_again_only_where_that_is_safe(
    file: Path, broker: Receiver
) -> None:
    write(file, {"body": "x"})
    broker.script(ADDRESS, [Reply(reset=True), answer(202)])

    said = publish(file, broker)

    assert said.status == 1
    assert "lines 1 to 1 were being sent; they may or may not be stored" in said.err
    assert len(broker.requests()) == 1

    broker.script(ADDRESS, [Reply(reset=True), answer(202)])
    assert publish(file, broker, idempotent=True).status == 0
    assert len(broker.requests()) == 3


def test_an_unreachable_broker_is_reported(
    file: Path, broker: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing.Api, "__init__", _impatient(publishing.Api.__init__))
    write(file, {"body": "x"})
    broker.close()

    said = publish(file, broker)

    assert f"{broker.url('')} cannot be reached: " in said.err
    assert "Connection refused" in said.err
    assert "urllib3" not in said.err


def test_a_dry_run_sends_nothing(file: Path, broker: Receiver) -> None:
    write(file, *CORPUS, "nonsense")

    said = publish(file, broker, dry_run=True)

    assert broker.requests() == []
    assert said.out.startswith("2 messages (")
    assert "can be read, 1 refused." in said.out
    assert said.status == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "Give an API key with --key-file PATH"),
        ({"key_file": "/nowhere"}, "/nowhere cannot be read: No such file"),
        ({"key_file": "-"}, "both the messages and the key"),
        ({"producer": "shop", "key_file": "x"}, "--producer needs --direct"),
        ({"batch": 0}, "--batch must be from 1 to 1000"),
    ],
)
def test_incompatible_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        Said("-", channel="orders", **options)


# -- Directly to the database ----------------------------------------------------------------------


@pytest.mark.django_db
def test_direct_stores_the_exact_bytes(file: Path) -> None:
    Channel.objects.create(slug="orders")
    Producer.objects.create(slug="shop")
    write(file, *CORPUS)

    said = Said(str(file), channel="orders", direct=True, producer="shop")

    assert said.status == 0
    assert stored() == [
        (item["event"], "application/json", item["body"].encode()) for item in CORPUS
    ]
    assert {row.producer.slug for row in Message.objects.all() if row.producer} == {"shop"}


@pytest.mark.django_db
def test_the_same_file_twice_is_stored_once(file: Path) -> None:
    Channel.objects.create(slug="orders")
    write(file, *CORPUS, CORPUS[0])
    options = {"channel": "orders", "direct": True, "idempotent": True, "batch": 2}

    first, second = Said(str(file), **options), Said(str(file), **options)

    assert (first.status, second.status) == (0, 0)
    assert "stored before" not in first.out
    assert "3 of them stored before." in second.out
    assert Message.objects.count() == 3  # the repeated line is a separate message


@pytest.mark.django_db
def test_direct_needs_a_producer_that_exists(file: Path) -> None:
    write(file, {"body": "x"})

    with pytest.raises(CommandError, match="no producer 'shop'"):
        Said(str(file), channel="orders", direct=True, producer="shop")


@pytest.mark.django_db
def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    Channel.objects.create(slug="orders")
    text = json.dumps(CORPUS[0]).encode() + b"\n"
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text)))

    assert Said("-", channel="orders", direct=True).status == 0
    assert Message.objects.count() == 1


# -- Refusals by a real broker ---------------------------------------------------------------------


@pytest.fixture(params=["direct", "http"])
def way(
    request: pytest.FixtureRequest,
    transactional_db: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """Options for publishing directly or over HTTP."""
    monkeypatch.setattr(publishing.Api, "__init__", _impatient(publishing.Api.__init__))
    if request.param == "direct":
        return {"channel": "orders", "direct": True}
    url = request.getfixturevalue("live_server").url
    key = tmp_path / "real.key"
    key.write_text(text_of(ApiKeyFactory.create(scopes=["publish"])))
    return {"channel": "orders", "url": url, "key_file": str(key)}


def test_an_unknown_channel_is_reported(way: dict[str, Any], file: Path) -> None:
    write(file, {"body": "x"})

    said = Said(str(file), **way)

    assert said.status == 1
    assert "Stopped after 0 lines: There is no channel orders." in said.err
    assert said.out.startswith("0 messages (0 B) stored")


def test_a_quota_stops_the_command_with_its_progress(way: dict[str, Any], file: Path) -> None:
    ChannelFactory.create(slug="orders", max_waiting_messages=3)
    write(file, *({"body": str(number)} for number in range(6)))

    said = Said(str(file), **way, batch=2)

    assert said.status == 1
    assert (
        "Stopped after 2 lines: Nothing was stored: 2 messages wait in the channel orders; the "
        "limit is 3. Try again when some of them are delivered."
    ) in said.err
    assert said.out.startswith("2 messages (")
    assert [body for _, _, body in stored()] == [b"0", b"1"]


def test_a_batch_that_never_fits_is_reported(way: dict[str, Any], file: Path) -> None:
    ChannelFactory.create(slug="orders", max_waiting_messages=3)
    write(file, *({"body": str(number)} for number in range(4)))

    said = Said(str(file), **way)

    assert said.status == 1
    assert "Stopped after 0 lines: " in said.err
    assert "4 at once exceed the limit: send fewer." in said.err
    assert Said(str(file), **way, batch=3).out.startswith("3 messages (")


def test_a_full_disk_stops_the_command(
    way: dict[str, Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ChannelFactory.create(slug="orders")
    write(file, {"body": "x"})

    with a_short_disk(monkeypatch):
        said = Said(str(file), **way)

    assert said.status == 1
    assert "Stopped after 0 lines: Nothing was stored: the broker's disk is full." in said.err


def test_unstorable_lines_are_reported_and_the_rest_is_stored(
    way: dict[str, Any], file: Path
) -> None:
    ChannelFactory.create(slug="orders", max_body_bytes=10)
    write(file, {"body": "first"}, {"body": "x" * 11}, '{"body": "half', {"body": "last"})

    said = Said(str(file), **way)

    assert said.status == 1
    first, second = said.err.splitlines()
    assert first.startswith("Line 2: body: ")
    assert "10 bytes" in first
    assert second.startswith("Line 3: This is not JSON: ")
    assert said.out.startswith("2 messages (")
    assert said.out.endswith("2 refused.\n")
    assert [body for _, _, body in stored()] == [b"first", b"last"]


@pytest.mark.parametrize("way", ["http"], indirect=True)
def test_a_too_large_message_stops_no_other(
    way: dict[str, Any], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = replace(conf.conf(), max_batch_bytes=300)
    monkeypatch.setattr("channels_app.api.views.batch.conf", lambda: limited)
    ChannelFactory.create(slug="orders")
    bodies = ["a" * 100, "b" * 100, "c" * 400, "d" * 100, "e" * 100]
    write(file, *({"body": body} for body in bodies))

    said = Said(str(file), **way)

    assert said.status == 1
    assert "Line 3: " in said.err
    assert "(413)" in said.err
    assert said.out.startswith("4 messages (")
    assert [body[:1] for _, _, body in stored()] == [b"a", b"b", b"d", b"e"]


def test_messages_stored_before_a_stop_are_counted(file: Path, broker: Receiver) -> None:
    broker.script(ADDRESS, [Reply(413), answer(202, 202), Reply(403, body=b'{"detail": "No."}')])
    write(file, *({"body": str(number)} for number in range(4)))

    said = publish(file, broker)

    assert said.status == 1
    assert said.out.startswith("2 messages (")
    assert "Stopped after 2 lines: No. (403)" in said.err
