"""The commands of an installation; the other commands are those of ``delivery``."""
