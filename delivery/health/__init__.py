"""The health of consumers: circuit breakers, changes, notifications."""
