"""The portal's template tags: times, states and icons."""

from datetime import datetime, timedelta, timezone

from django import forms
from django.template.loader import render_to_string

from channels_app.portal import tags


def test_an_instant_is_rendered_in_utc_before_scripts_run() -> None:
    at = datetime(2026, 3, 4, 6, 7, 8, 9000, tzinfo=timezone(timedelta(hours=1)))

    html = tags.instant(at)

    assert 'datetime="2026-03-04T05:07:08.009Z"' in html
    assert "2026-03-04 05:07:08 UTC</time>" in html
    assert "never" in tags.instant(None)


def test_a_badge_has_the_colour_of_its_label_and_is_escaped() -> None:
    assert tags.badge("active") == '<span class="badge badge-good">active</span>'
    assert tags.badge("in_flight") == '<span class="badge badge-busy">in flight</span>'
    assert "badge-bad" in tags.badge("whatever", "bad")
    assert "&lt;b&gt;" in tags.badge("<b>")


def test_a_sparkline_is_drawn_for_any_values() -> None:
    for values in ([], [0], [3], [0, 0], [1, 5, 2]):
        assert "<polyline" in tags.sparkline(values)
    assert 'points="0.0,26.0 120.0,2.0"' in tags.sparkline([0, 5])


class Sample(forms.Form):
    """A form with one field of each kind."""

    name = forms.CharField(help_text="For people.")
    note = forms.CharField(required=False)
    agreed = forms.BooleanField(label="Agreed")
    scopes = forms.MultipleChoiceField(
        choices=[("a", "A"), ("b", "B")], widget=forms.CheckboxSelectMultiple
    )


def test_a_form_keeps_input_and_shows_field_errors() -> None:
    form = Sample({"note": "<kept>"})

    html = render_to_string("portal/form.html", {"form": form})

    assert 'value="&lt;kept&gt;"' in html
    assert html.count('class="error"') == 3
    assert 'id="id_name_error"' in html
    assert 'aria-describedby="id_name_helptext' in html
    assert html.count("optional") == 1
    assert html.count("<fieldset") == html.count("</fieldset>") == 1
