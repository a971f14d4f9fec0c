"""How a delivery is judged, timed and signed, as pure functions: no Django, no I/O."""
