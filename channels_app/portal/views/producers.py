"""Manage the producers of a team."""

from django.contrib import messages
from django.db.models import Count, Q
from django.http import Http404, HttpResponse
from django.shortcuts import redirect

from channels_app.core.http import Precondition
from channels_app.database import clock
from channels_app.models import Producer
from channels_app.portal.access import TeamRequest, TeamView
from channels_app.portal.forms import NewProducerForm, ProducerForm, initial, tried
from channels_app.registry import producers


class ProducersView(TeamView):
    """All producers, with their number of valid keys."""

    section = "producers"

    def get(self, request: TeamRequest) -> HttpResponse:
        """Show the list."""
        lasting = Q(keys__expires_at=None) | Q(keys__expires_at__gt=clock.now())
        able = Count("keys", filter=lasting & Q(keys__revoked_at=None))
        rows = request.team.producers.annotate(key_count=able).order_by("slug")
        return self.page("portal/producers.html", {"producers": rows})


class NewProducerView(TeamView):
    """Create a producer."""

    section = "producers"
    reader = "editor"

    def get(self, request: TeamRequest) -> HttpResponse:
        """Show the form."""
        return self._ask(NewProducerForm(request.team))

    def post(self, request: TeamRequest) -> HttpResponse:
        """Create it."""
        form, team = NewProducerForm(request.team, request.POST), request.team.slug
        done = tried(
            form,
            lambda: producers.make_within(
                team, form.cleaned_data["name"], form.values(), principal=request.principal
            ),
        )
        if done is None:
            return self._ask(form, status=422)
        messages.success(request, f"{done.row} is created. Ask an operator for its first key.")
        return redirect("portal:producer", team, done.row.slug)

    def _ask(self, form: NewProducerForm, *, status: int = 200) -> HttpResponse:
        return self.page("portal/producer_new.html", {"form": form}, status=status)


class ProducerView(TeamView):
    """One producer."""

    section = "producers"

    def get(self, request: TeamRequest, producer: str) -> HttpResponse:
        """Show its settings and limits."""
        row = self._find(request, producer)
        return self._ask(ProducerForm(initial=initial(row)), row)

    def post(self, request: TeamRequest, producer: str) -> HttpResponse:
        """Change it, unless somebody else has changed it meanwhile."""
        row, form = self._find(request, producer), ProducerForm(request.POST)
        seen = request.POST.get("version", "")
        done = tried(
            form,
            lambda: producers.change_within(
                request.team.slug,
                producer,
                form.values(),
                principal=request.principal,
                condition=Precondition(frozenset({int(seen)} if seen.isdecimal() else ())),
            ),
        )
        if done is None:
            return self._ask(form, row, status=422)
        messages.success(request, "Saved." if done.changed else "Nothing was changed.")
        return redirect("portal:producer", request.team.slug, producer)

    def _ask(self, form: ProducerForm, row: Producer, *, status: int = 200) -> HttpResponse:
        context = {"form": form, "producer": row}
        return self.page("portal/producer.html", context, status=status)

    def _find(self, request: TeamRequest, slug: str) -> Producer:
        row = request.team.producers.filter(slug=slug).first()
        if row is None:
            raise Http404(f"There is no producer {slug}.")
        return row
