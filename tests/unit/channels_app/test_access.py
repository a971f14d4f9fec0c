"""Authorization: teams are isolated from each other, and roles limit members within a team."""

from dataclasses import replace

import pytest

from channels_app.access.principal import Principal
from channels_app.core.access import ROLE_SCOPES, TEAM_RANKS, includes
from channels_app.core.errors import Forbidden
from channels_app.core.keys import SCOPES
from channels_app.models import Channel, Producer
from tests.support.principals import acting

TEAM, NOBODY = Principal("key:a", team_id=1), Principal("key:b")
PRODUCER = Producer(id=7, team_id=1)
OF_PRODUCER = Principal("key:c", team_id=1, producer=PRODUCER)
OPERATOR = acting("command")


@pytest.mark.parametrize(
    ("principal", "team_id", "owns"),
    [
        pytest.param(TEAM, 1, True, id="its own"),
        pytest.param(TEAM, 2, False, id="another team's"),
        pytest.param(TEAM, None, False, id="nobody's"),
        pytest.param(NOBODY, None, True, id="nobody's, of nobody"),
        pytest.param(NOBODY, 1, False, id="a team's, of nobody"),
        pytest.param(OPERATOR, 1, True, id="a team's, of an operator"),
        pytest.param(OPERATOR, None, True, id="nobody's, of an operator"),
    ],
)
def test_owns_is_true_for_the_own_team_and_for_operators(
    principal: Principal, team_id: int | None, owns: bool
) -> None:
    assert principal.owns(team_id) is owns


def test_scopes_are_exact_and_operators_have_them_all() -> None:
    assert SCOPES == ("publish", "register", "receive", "read", "replay", "sensitive", "admin")
    for wanted in SCOPES:
        assert Principal("key:a", scopes=[wanted]).may(wanted)
        assert OPERATOR.may(wanted)
        others = [scope for scope in SCOPES if scope != wanted]
        assert not Principal("key:a", scopes=others).may(wanted)
        assert Principal("key:a", scopes=others).may(wanted, *others)


@pytest.mark.parametrize("scopes", [(), ("read",), ("read", "publish")])
def test_a_disabled_producer_may_do_nothing(scopes: tuple[str, ...]) -> None:
    producer = Producer(id=7, disabled=True)
    with pytest.raises(Forbidden, match="disabled"):
        Principal("key:a", scopes=scopes, producer=producer).require(*scopes)


@pytest.mark.parametrize(
    ("principal", "seen"),
    [
        pytest.param(TEAM, ["external"], id="a team"),
        pytest.param(replace(TEAM, channels=["a"]), ["external", "internal"], id="that names it"),
        pytest.param(replace(TEAM, channels=["b"]), [], id="that names another one"),
        pytest.param(replace(TEAM, is_operator=True), ["external", "internal"], id="of operators"),
        pytest.param(OF_PRODUCER, ["external", "internal"], id="its producer"),
        pytest.param(replace(OF_PRODUCER, channels=["b"]), [], id="its producer, another one"),
        pytest.param(NOBODY, ["external", "internal"], id="nobody"),
        pytest.param(replace(OPERATOR, channels=["b"]), ["external", "internal"], id="operator"),
    ],
)
def test_teams_see_external_channels_and_those_that_their_keys_name(
    principal: Principal, seen: list[str]
) -> None:
    assert [how for how in ("external", "internal") if principal.sees("a", how)] == seen


ROWS = {"own": (7, 1), "of its team": (8, 1), "of another team": (9, 2), "of nobody": (None, None)}


@pytest.mark.parametrize(
    ("principal", "changed"),
    [
        pytest.param(OF_PRODUCER, ["own"], id="a producer"),
        pytest.param(TEAM, ["own", "of its team"], id="a team"),
        pytest.param(NOBODY, ["of nobody"], id="nobody"),
        pytest.param(replace(OF_PRODUCER, is_operator=True), [*ROWS], id="an operator"),
    ],
)
def test_a_producer_changes_only_what_it_made(principal: Principal, changed: list[str]) -> None:
    assert [name for name, row in ROWS.items() if principal.may_change(*row)] == changed


def test_what_a_producer_registered_for_all_its_team_may_change() -> None:
    makers = [PRODUCER, Producer(id=8, team_id=1), Producer(id=9, team_id=2), None]
    for principal, changed in (
        (OF_PRODUCER, makers[:2]),
        (Principal("key:d", producer=Producer(id=10)), []),
        (NOBODY, [None]),
        (OPERATOR, makers),
    ):
        assert [one for one in makers if principal.may_change_shared(one)] == changed


@pytest.mark.parametrize("role", TEAM_RANKS)
@pytest.mark.parametrize("sensitive", [False, True])
def test_of_a_sensitive_channel_only_owners_of_the_team_read_bodies(
    role: str, sensitive: bool
) -> None:
    member = replace(TEAM, role=role, scopes=ROLE_SCOPES[role])
    assert member.may_open(Channel(sensitive=sensitive)) is (role == "owner" or not sensitive)
    assert member.has_role("owner") is (role == "owner")


def test_only_members_have_a_role() -> None:
    assert not any(one.has_role("viewer") for one in (TEAM, NOBODY, OPERATOR))


def test_includes_of_a_role_are_itself_and_weaker_roles() -> None:
    assert {
        role: [other for other in TEAM_RANKS if includes(role, other)] for role in TEAM_RANKS
    } == {
        "viewer": ["viewer"],
        "editor": ["viewer", "editor"],
        "owner": ["viewer", "editor", "owner"],
    }
