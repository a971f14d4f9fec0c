"""The REST API of messages, deliveries, leases, ordering keys and replays."""
