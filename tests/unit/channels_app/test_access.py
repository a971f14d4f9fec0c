"""Authorization: teams are isolated from each other, and roles limit members within a team."""

import pytest

from channels_app.core.access import OPERATOR, TEAM_RANKS, Tenant, includes


@pytest.mark.parametrize(
    ("tenant", "team_id", "owns"),
    [
        pytest.param(Tenant(1), 1, True, id="its own"),
        pytest.param(Tenant(1), 2, False, id="another team's"),
        pytest.param(Tenant(1), None, False, id="nobody's"),
        pytest.param(Tenant(), None, True, id="nobody's, of nobody"),
        pytest.param(Tenant(), 1, False, id="a team's, of nobody"),
        pytest.param(OPERATOR, 1, True, id="a team's, of an operator"),
        pytest.param(OPERATOR, None, True, id="nobody's, of an operator"),
    ],
)
def test_owns_is_true_for_the_own_team_and_for_operators(
    tenant: Tenant, team_id: int | None, owns: bool
) -> None:
    assert tenant.owns(team_id) is owns


def test_includes_of_a_role_are_itself_and_weaker_roles() -> None:
    assert {
        role: [other for other in TEAM_RANKS if includes(role, other)] for role in TEAM_RANKS
    } == {
        "viewer": ["viewer"],
        "editor": ["viewer", "editor"],
        "owner": ["viewer", "editor", "owner"],
    }
