"""People join and leave a team at the same moment; its row is the lock."""

from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from channels_app.core.errors import Refused
from channels_app.models import Invitation, Membership, Team
from channels_app.registry import teams
from tests.support import people
from tests.support.factories import TeamFactory
from tests.support.principals import acting
from tests.support.threads import at_once, in_thread
from tests.support.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.mariadb]


def invite() -> str:
    """Return the token of a new link."""
    return str(teams.invite("acme", {}, principal=acting("a"), inviter="o").secrets[0])


def test_two_last_owners_cannot_leave_at_the_same_time() -> None:
    team = TeamFactory.create(slug="acme")
    for name in ("olive", "otto"):
        people.person(name, team, "owner")
    rows = Membership.objects.values_list("pk", flat=True)

    leave = [partial(teams.end_membership, "acme", row, principal=acting("a")) for row in rows]
    at_once(*leave, ignoring=(Refused,))

    assert Membership.objects.filter(role="owner").count() == 1


def test_one_link_admits_only_one_of_two_concurrent_users() -> None:
    TeamFactory.create(slug="acme")
    token = invite()
    users = [User.objects.create_user(name) for name in ("nora", "tim")]

    join = [
        partial(teams.accept_invitation, token, user=user, principal=acting("a")) for user in users
    ]
    at_once(*join, ignoring=(Refused,))

    assert Membership.objects.count() == 1


def test_joining_by_two_links_creates_one_membership() -> None:
    TeamFactory.create(slug="acme")
    tokens = [invite(), invite()]
    user, refused = User.objects.create_user("nora"), []
    looked: list[str] = []

    def note(execute: Any, sql: str, *more: Any) -> Any:
        answer = execute(sql, *more)
        if sql.startswith("SELECT") and Membership._meta.db_table in sql:
            looked.append(sql)
        return answer

    def join(token: str) -> None:
        try:
            with connection.execute_wrapper(note):
                teams.accept_invitation(token, user=user, principal=acting("a"))
        except Refused as refusal:
            refused.append(refusal.detail)

    with transaction.atomic():
        # Adding a member locks the team's row: both have read it before either can write.
        Team.objects.select_for_update().get()
        joining = in_thread(lambda: at_once(*(partial(join, token) for token in tokens)))
        until(lambda: len(looked) == 2, "both have found no membership")
    joining.join()

    assert Membership.objects.count() == 1
    assert len(refused) == 1
    assert Invitation.objects.filter(accepted_at=None).count() == 1
