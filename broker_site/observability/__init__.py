"""Tell what state an installation is in: probes, metrics, checks and the diagnosis."""
