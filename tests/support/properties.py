"""Configure Hypothesis profiles: few examples during development, many before a merge.

``make test`` uses the profile "few", ``make test-full`` sets ``--hypothesis-profile=many``, and
"thousands" is for a nightly run.
"""

from hypothesis import HealthCheck, settings

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def register_profiles() -> None:
    """Register the profiles and use "few", unless the command line names another.

    There is no deadline and no limit of the time to draw, so that slow machines do not fail tests.
    """
    for name, number in (("few", 20), ("many", 50), ("thousands", 5000)):
        settings.register_profile(name, patient, max_examples=number)
    settings.load_profile("few")


def examples(few: int, many: int) -> int:
    """Return the number for the profile of this run."""
    wanted = {"few": few, "many": many}
    return wanted.get(settings.get_current_profile_name(), settings().max_examples)


quick = settings(patient, max_examples=25)
"""For rules with few cases: the same in both profiles."""
