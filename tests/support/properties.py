"""How hard properties are tried: with few examples while one works, with many before one lands.

``make test`` takes the profile "few", ``make test-full`` asks for ``--hypothesis-profile=many``,
and "thousands" is for a night.
"""

from hypothesis import settings


def register_profiles() -> None:
    """Name the profiles and take "few", unless the command line asks for another.

    No deadline: a busy machine must not fail a test that is about the answer, not the time.
    """
    for name, number in (("few", 20), ("many", 100), ("thousands", 5000)):
        settings.register_profile(name, max_examples=number, deadline=None)
    settings.load_profile("few")


def examples(few: int, many: int) -> int:
    """As many as the profile of this run wants."""
    wanted = {"few": few, "many": many}
    return wanted.get(settings.get_current_profile_name(), settings().max_examples)


quick = settings(max_examples=25, deadline=None)
"""For rules whose space is small: the same in both profiles."""
