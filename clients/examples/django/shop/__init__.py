"""A shop whose orders are published when they are committed."""
