"""Assemble the site: settings, URLs, the console and the commands of an installation."""

__version__ = "0.1.0"
