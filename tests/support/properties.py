"""How hard properties are tried: with few examples while one works, with many before one lands.

``make test`` takes the profile "few", ``make test-full`` asks for ``--hypothesis-profile=many``,
and "thousands" is for a night.
"""

from hypothesis import settings

# No deadline: a busy machine must not fail a test that is about the answer, not the time.
settings.register_profile("few", max_examples=20, deadline=None)
settings.register_profile("many", max_examples=100, deadline=None)
settings.register_profile("thousands", max_examples=5000, deadline=None)


def examples(few: int, many: int) -> int:
    """As many as the profile of this run wants."""
    wanted = {"few": few, "many": many}
    return wanted.get(settings.get_current_profile_name(), settings().max_examples)


quick = settings(max_examples=25, deadline=None)
"""For rules whose space is small: the same in both profiles."""
