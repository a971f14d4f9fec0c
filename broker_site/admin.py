"""Register the pages of the console; Django imports this module for them."""

from broker_site.console import people, system, upcoming, usage  # noqa: F401 - register their pages
