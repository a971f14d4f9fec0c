"""Decide who may send what to whom, as pure functions: no Django, no I/O, time is an argument."""
