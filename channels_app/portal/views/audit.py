"""Show the audit log of a team."""

import json
from typing import Any, NamedTuple

from django.http import HttpResponse

from channels_app.models import AuditEntry
from channels_app.portal.access import TeamRequest, TeamView

PAGE = 50


class Change(NamedTuple):
    """One value before and after; '' if there was none."""

    name: str
    before: str
    after: str


class AuditView(TeamView):
    """The team's entries, newest first, read in index order."""

    section = "audit"

    def get(self, request: TeamRequest) -> HttpResponse:
        """A page of entries; ``?before=`` is the last id of the previous page."""
        entries = AuditEntry.objects.filter(team_id=request.team.pk).order_by("-id")
        before = request.GET.get("before", "")
        is_further = before.isascii() and before.isdecimal() and len(before) < 19
        if is_further:
            entries = entries.filter(id__lt=int(before))
        found = list(entries[: PAGE + 1])
        rows = [(entry, changes(entry)) for entry in found[:PAGE]]
        older = rows[-1][0].pk if len(found) > PAGE else None
        context = {"rows": rows, "older": older, "is_further": is_further}
        return self.page("portal/audit.html", context)


def changes(entry: AuditEntry) -> list[Change]:
    """All changed values of an entry."""
    before, after = entry.before or {}, entry.after or {}
    names = [*before, *(name for name in after if name not in before)]
    compared = [Change(name, _shown(before, name), _shown(after, name)) for name in names]
    return [change for change in compared if change.before or change.after]


def _shown(side: Any, name: str) -> str:
    if name not in side or side[name] in (None, ""):
        return ""
    value = side[name]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
