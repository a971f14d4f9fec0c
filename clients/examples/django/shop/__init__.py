"""A shop: its orders are published when they are committed."""
