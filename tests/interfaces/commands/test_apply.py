"""``manage.py apply``: idempotent, and a file with an error changes nothing."""

from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from channels_app.core.encryption import decode_secret, generate_key, new_secret
from channels_app.models import (
    ApiKey,
    AuditEntry,
    Channel,
    Consumer,
    ConsumerSecret,
    EventType,
    Membership,
    Producer,
    Schedule,
    Team,
)
from channels_app.registry import data_encryption
from delivery.management import applying
from tests.support.keys import host

pytestmark = pytest.mark.django_db

FILE = """
[[channels]]
slug = "orders"
exposure = "external"
max_body_bytes = 65536

[[event_types]]
channel = "orders"
name = "order.created"
schema = '{"type": "object"}'
example = {id = 7}

[[producers]]
slug = "shop"
rate_limit = {per_second = 100, burst = 200}

[[consumers]]
channel = "orders"
client_id = "billing"
url = "http://127.0.0.1:9000/hook"
event_types = ["order.*"]
headers = {X-Token = "t0p"}
timeout_ms = 3000
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hooks.toml"


def apply(file: Path, text: str = FILE, **options: Any) -> str:
    file.write_text(text, "utf-8")
    out = StringIO()
    call_command("apply", str(file), stdout=out, **options)
    return out.getvalue()


def rows() -> list[int]:
    return [kind.objects.count() for kind in (Channel, EventType, Producer, Consumer, AuditEntry)]


def secrets() -> list[bytes]:
    """Return the current signing secrets of the only consumer."""
    consumer = Consumer.objects.get()
    return [
        data_encryption.decrypt_for_consumer(
            consumer.channel_id, consumer.client_id, bytes(row.sealed)
        )
        for row in ConsumerSecret.objects.filter(expires_at=None)
    ]


def many(count: int, path: str = "hook", secret: bool = False) -> str:
    """Return a file with ``count`` consumers."""
    head = '[[channels]]\nslug = "orders"\n'
    return head + "".join(
        f'[[consumers]]\nchannel = "orders"\nclient_id = "c{number}"\n'
        f'url = "http://127.0.0.1:9000/{path}/{number}"\nsigning = ["v1", "v1a"]\n'
        + (f'secret = "{new_secret()}"\n' if secret else "")
        for number in range(count)
    )


@pytest.mark.trap("statements per row")
def test_a_hundred_consumers_take_a_few_statements(file: Path) -> None:
    """The statements take the time: eleven for each of 3,000 consumers took most of a minute."""
    with CaptureQueriesContext(connection) as dry:
        assert "101 new" in apply(file, many(100), dry_run=True)
    assert not Consumer.objects.exists()
    with CaptureQueriesContext(connection) as new:
        apply(file, many(100))
    with CaptureQueriesContext(connection) as same:
        assert apply(file, many(100)).endswith("0 new, 0 changed, 101 unchanged.\n")
    with CaptureQueriesContext(connection) as changed:
        assert "0 new, 100 changed, 1 unchanged." in apply(file, many(100, "other"))

    assert max(map(len, (dry, new, same, changed))) < 50
    consumers = Consumer.objects.all()
    assert {row.url for row in consumers} == {
        f"http://127.0.0.1:9000/other/{i}" for i in range(100)
    }
    assert {row.version for row in consumers} == {2}
    schemes = ConsumerSecret.objects.order_by("scheme").values_list("scheme", "consumer_id")
    assert sorted(schemes) == sorted((s, row.id) for row in consumers for s in ("v1", "v1a"))
    actions = AuditEntry.objects.filter(target__startswith="consumer:").values_list("action")
    assert Counter(actions) == {("consumer.create",): 100, ("consumer.update",): 100}


@pytest.mark.trap("statements per row")
def test_a_hundred_chosen_secrets_take_a_few_statements(file: Path) -> None:
    text, other = many(100, secret=True), many(100, secret=True)
    with CaptureQueriesContext(connection) as new:
        apply(file, text)
    with CaptureQueriesContext(connection) as same:
        assert apply(file, text).endswith("0 new, 0 changed, 101 unchanged.\n")
    with CaptureQueriesContext(connection) as changed:
        assert "0 new, 100 changed, 1 unchanged." in apply(file, other)

    assert max(map(len, (new, same, changed))) < 60
    shared = ConsumerSecret.objects.filter(scheme="v1")
    assert shared.filter(expires_at=None).count() == shared.exclude(expires_at=None).count() == 100
    for row in shared.filter(expires_at=None).select_related("consumer"):
        name = row.consumer.client_id
        secret = other.split(f'"{name}"')[1].split('secret = "')[1].split('"')[0]
        opened = data_encryption.decrypt_for_consumer(
            row.consumer.channel_id, name, bytes(row.sealed)
        )
        assert opened == decode_secret(secret)
    actions = AuditEntry.objects.filter(target__startswith="consumer:").values_list("action")
    assert Counter(actions) == {("consumer.create",): 100, ("consumer.adopt_secret",): 200}


@pytest.mark.trap("statements per row")
def test_schedules_read_the_consumers_once(file: Path) -> None:
    text = many(1) + "".join(
        f'[[schedules]]\nchannel = "orders"\nname = "s{number}"\ncron = "* * * * *"\nbody = "x"\n'
        for number in range(5)
    )
    with CaptureQueriesContext(connection) as queries:
        assert "7 new" in apply(file, text)

    table = Consumer._meta.db_table
    reads = [it["sql"] for it in queries if it["sql"].startswith("SELECT") and table in it["sql"]]
    assert len(reads) < 5, reads


def test_a_long_file_shows_progress(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "BATCH_SIZE", 3)
    apply(file, many(7))
    assert capsys.readouterr().err.splitlines() == [
        "1 of 8 entries",
        "4 of 8 entries",
        "7 of 8 entries",
        "8 of 8 entries",
    ]


def test_a_new_file_creates_and_lists_everything_and_again_changes_nothing(file: Path) -> None:
    said = apply(file)

    assert said.startswith(
        """\
+ channel orders
    exposure        "external"
    max_body_bytes  65536
+ event type orders/order.created
    schema   {"type": "object"}
    example  {"id": 7}
+ producer shop
    rate_limit  {"per_second": 100.0, "burst": 200}
+ consumer orders/billing
    url          "http://127.0.0.1:9000/hook"
    event_types  ["order.*"]
    timeout_ms   3000
    headers      {"X-Token": "********"}
4 new, 0 changed, 0 unchanged.

Signing secrets of new consumers. They are not shown again:
  orders/billing  whsec_"""
    )
    assert "\x1b" not in said
    assert "t0p" not in said
    assert secrets() == [decode_secret(said.split()[-1])]
    assert EventType.objects.get().schema == {"type": "object"}
    assert AuditEntry.objects.filter(actor__startswith="command:").count() == 4

    before = rows()

    assert apply(file) == (
        "= channel orders\n= event type orders/order.created\n= producer shop\n"
        "= consumer orders/billing\n0 new, 0 changed, 4 unchanged.\n"
    )
    assert rows() == before


def test_a_change_is_shown_with_old_and_new_value_but_a_header_without(file: Path) -> None:
    apply(file)

    said = apply(file, FILE.replace("65536", "1000").replace("timeout_ms = 3000", ""))

    assert "~ channel orders\n    max_body_bytes  65536 -> 1000\n" in said
    assert "~ consumer orders/billing\n    timeout_ms  3000 -> default\n" in said
    assert "0 new, 2 changed, 2 unchanged." in said
    assert Channel.objects.get().max_body_bytes == 1000
    assert Consumer.objects.get().timeout_ms is None

    said = apply(file, FILE.replace("t0p", "s3cret").replace("timeout_ms = 3000", ""))

    assert "~ consumer orders/billing\n    headers  changed\n" in said
    assert "s3cret" not in said


def test_a_dry_run_shows_the_same_and_writes_nothing(file: Path) -> None:
    said = apply(file, dry_run=True)

    assert "+ consumer orders/billing" in said
    assert said.endswith("4 new, 0 changed, 0 unchanged. Nothing was written (--dry-run).\n")
    assert "whsec_" not in said
    assert rows() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("how", ["secret", "secret_file"])
def test_a_chosen_secret_signs_and_is_not_printed(file: Path, how: str) -> None:
    chosen, other = new_secret(), new_secret()
    (file.parent / "billing.secret").write_text(chosen + "\n")
    value = chosen if how == "secret" else "billing.secret"
    text = FILE + f'{how} = "{value}"\n'

    said = apply(file, text)

    assert secrets() == [decode_secret(chosen)]
    assert ConsumerSecret.objects.count() == 1
    assert "whsec_" not in said
    assert "= consumer orders/billing" in apply(file, text)

    said = apply(file, FILE + f'secret = "{other}"\n')

    assert "~ consumer orders/billing\n    secret  changed\n" in said
    assert secrets() == [decode_secret(other)]
    assert ConsumerSecret.objects.count() == 2  # the former secret still signs for a day


@pytest.mark.parametrize("text", [FILE, FILE + f'secret = "{new_secret()}"'], ids=["new", "chosen"])
def test_without_the_encryption_key_nothing_is_applied(file: Path, text: str) -> None:
    with host(generate_key()) as former:
        if text == FILE:
            data_encryption.encrypting_key()  # creates the installation's first key
        else:
            apply(file, FILE)
        before = rows()
    with host(generate_key()), pytest.raises(CommandError) as refused:
        apply(file, text)
    place = "consumers 1 (orders/billing): "
    assert f"{place}This process does not have the encryption key {former.primary_id}." in str(
        refused.value
    )
    assert rows() == before


def test_retry_overrides_are_tables_of_a_consumer(file: Path) -> None:
    overrides = """
[[consumers.retry_overrides]]
event_types = ["order.refunded"]
retry = "once"

[[consumers.retry_overrides]]
event_types = ["order.*"]
retry = [1, 60]
max_attempts = 5
"""
    assert '  retry_overrides  [{"event_types"' in apply(file, FILE + overrides)
    consumer = Consumer.objects.get()
    assert consumer.retry_overrides == [
        {"event_types": ["order.refunded"], "retry": "once", "max_attempts": None},
        {"event_types": ["order.*"], "retry": [1, 60], "max_attempts": 5},
    ]
    assert "0 changed" in apply(file, FILE + overrides)
    swapped = overrides.replace("order.refunded", "order.x.*").replace('"order.*"', '"order.x.y"')
    with pytest.raises(CommandError, match=r"retry_overrides: Entry 2: order\.x\.\* of entry 1"):
        apply(file, FILE + swapped)


DAILY = '[[schedules]]\nchannel = "orders"\nname = "daily"\n'
TWICE = FILE + FILE[FILE.index("[[producers]]") : FILE.index("[[consumers]]")]
BAD = {
    "unknown table": (
        FILE + "[[consumer]]\n",
        ["consumer: There is no such table; did you mean consumers?"],
    ),
    "table instead of entries": (
        "[channels]\nslug = 'x'\n",
        ["channels: Write each channel as an entry of its own, under [[channels]]."],
    ),
    "unknown field": (
        FILE + "max_atempts = 3\n",
        [
            "consumers 1 (orders/billing), max_atempts: There is no such field; "
            "did you mean max_attempts?"
        ],
    ),
    "unlike any field": (FILE + "colour = 3\n", ["colour: There is no such field; there are"]),
    "no key": ("[[channels]]\n", ["channels 1, slug: This field is required."]),
    "key of another type": ("[[channels]]\nslug = 7\n", ["slug: Text is needed here."]),
    "a bad name": ("[[channels]]\nslug = 'Orders!'\n", ["channels 1 (Orders!), channel: A name"]),
    "twice": (TWICE, ["producers 2 (shop): This producer is declared above already."]),
    "a consumer twice": (
        FILE + FILE[FILE.index("[[consumers]]") :],
        ["consumers 2 (orders/billing): This consumer is declared above already."],
    ),
    "not JSON": (FILE.replace('\'{"type"', "'{type"), ["schema: This text is not JSON: "]),
    "not a schema": (FILE.replace('"object"}', '"objekt"}'), ["order.created), schema: "]),
    "two secrets": (
        FILE + "secret = 'x'\nsecret_file = 'y'\n",
        ["secret_file: Give either secret or secret_file, not both."],
    ),
    "a bad secret": (FILE + "secret = 'whsec_x'\n", ["(orders/billing), secret: The key must be"]),
    "no secret file": (FILE + "secret_file = 'nowhere'\n", ["secret_file: ", "cannot be read"]),
    "unknown channel": (
        FILE.replace('channel = "orders"\nclient', 'channel = "order"\nclient'),
        ["consumers 1 (order/billing): There is no channel order."],
    ),
    "many at once": (
        FILE.replace("65536", "-1").replace("= 3000", "= 'x'").replace("= 100", "= 0"),
        [
            "3 problems",
            "channels 1 (orders), max_body_bytes: A whole number from",
            "producers 1 (shop), rate_limit: per_second: A number from",
            "consumers 1 (orders/billing), timeout_ms: A whole number from",
        ],
    ),
    "a time is no text": (FILE + "description = 07:30:00\n", ["description: Text is needed."]),
    "an unknown field of a team": (
        FILE + '[[teams]]\nslug = "shop"\nmembers = ["olga"]',
        ["teams 1 (shop), members: There is no such field"],
    ),
    "an unknown team": (
        FILE + '[[producers]]\nslug = "tills"\nteam = "shops"',
        ["producers 2 (tills), team: There is no team shops"],
    ),
    "no cron expression": (
        f'{FILE}{DAILY}cron = "61 * * * *"\nbody = "x"',
        ["schedules 1 (orders/daily), cron: This is not a cron expression"],
    ),
    "a schedule without a body": (
        f'{FILE}{DAILY}cron = "* * * * *"',
        ["schedules 1 (orders/daily), body: Give either body"],
    ),
    "a schedule whose body is refused": (
        f'{FILE}{DAILY}cron = "* * * * *"\nbody = "1"\nevent_type = "order.created"',
        ["schedules 1 (orders/daily), body: "],
    ),
    "not TOML": ("[[channels]\n", ["The file is not TOML: ", "line 1"]),
}


def test_an_invalid_file_is_reported_by_position_and_changes_nothing(file: Path) -> None:
    for name, (text, told) in BAD.items():
        with pytest.raises(CommandError) as caught:
            apply(file, text)
        for part in told:
            assert part in str(caught.value), name
        number = next((int(part.split()[0]) for part in told if part.endswith(" problems")), 1)
        assert len(str(caught.value).splitlines()) == 1 + number, name
    assert rows() == [0, 0, 0, 0, 0]
    assert not Team.objects.exists()


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"cannot be read: No such file"):
        call_command("apply", str(tmp_path / "nowhere.toml"))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(FILE))
    out = StringIO()

    call_command("apply", "-", stdout=out)

    assert Consumer.objects.get().client_id == "billing"


def test_colours_only_on_terminals(file: Path) -> None:
    assert "\x1b[32;1m+ channel orders\x1b[0m" in apply(file, dry_run=True, force_color=True)


SCHEDULE = """
[[schedules]]
channel = "orders"
name = "daily-report"
cron = "0 9 * * 1-5"
timezone = "Europe/Paris"
event_type = "order.created"
body = '{"report": 1}'
"""


@pytest.mark.seed("S4-06")
def test_a_schedule_can_use_a_channel_of_the_same_file(file: Path) -> None:
    assert "5 new" in apply(file, FILE + SCHEDULE, dry_run=True)
    assert not Schedule.objects.exists()
    said = apply(file, FILE + SCHEDULE)
    assert "+ schedule orders/daily-report\n    cron" in said
    schedule = Schedule.objects.get()
    assert schedule.next_at is not None
    assert "= schedule orders/daily-report" in apply(file, FILE + SCHEDULE)
    said = apply(file, FILE + SCHEDULE.replace('"report": 1', '"report": 2'))
    assert "~ schedule orders/daily-report\n    body  changed" in said


TEAM = """
[[teams]]
slug = "shop"
name = "The shop"
max_waiting_messages = 1000
"""
OWNED = """
[[channels]]
slug = "orders"
exposure = "external"

[[producers]]
slug = "tills"
team = "shop"

[[consumers]]
channel = "orders"
client_id = "billing"
url = "http://127.0.0.1:9000/hook"
team = "shop"
"""


def test_a_team_is_created_before_its_objects(file: Path) -> None:
    said = apply(file, OWNED + TEAM)

    assert said.startswith(
        """\
+ team shop
    name                  "The shop"
    max_waiting_messages  1000
+ channel orders
"""
    )
    team = Team.objects.get()
    assert (team.slug, team.name, team.max_waiting_messages) == ("shop", "The shop", 1000)
    assert Producer.objects.get().team == Consumer.objects.get().team == team
    entry = AuditEntry.objects.get(action="team.create")
    assert (entry.actor[:8], entry.target, entry.team_id) == ("command:", "team:shop", team.pk)
    assert "0 new, 0 changed, 4 unchanged." in apply(file, OWNED + TEAM)


def test_a_team_is_changed_and_keeps_its_people_and_its_name(file: Path) -> None:
    """A file does not list members: whoever writes files does not decide who belongs to a team."""
    apply(file, TEAM)
    member = User.objects.create_user("olga")
    Membership.objects.create(team=Team.objects.get(), user=member, role="owner")

    said = apply(file, '[[teams]]\nslug = "shop"\nmax_waiting_bytes = 5000\n')

    assert said.startswith(
        """\
~ team shop
    max_waiting_messages  1000 -> default
    max_waiting_bytes     default -> 5000
"""
    )
    team = Team.objects.get()
    assert (team.name, team.max_waiting_messages, team.version) == ("The shop", None, 2)
    assert [(it.user, it.role) for it in Membership.objects.all()] == [(member, "owner")]


def test_a_new_team_has_no_members_and_its_slug_as_name(file: Path) -> None:
    apply(file, '[[teams]]\nslug = "shop"\n')
    assert Team.objects.get().name == "shop"
    assert not Membership.objects.exists()
    assert not ApiKey.objects.exists()
