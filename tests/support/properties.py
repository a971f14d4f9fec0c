"""How hard the properties of rules are tried: often enough to find, fast enough to run always."""

from hypothesis import settings

quick = settings(max_examples=25, deadline=None)
"""No deadline: a busy machine must not fail a test that is about the answer, not the time."""
