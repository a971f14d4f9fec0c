"""Pure functions and values of deliveries: no Django, no I/O; time is an argument."""
