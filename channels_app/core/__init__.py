"""Pure functions and values of channels: no Django, no I/O; time is an argument."""
