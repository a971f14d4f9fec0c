"""Acknowledgements of deliveries: callbacks, and how long to wait for them."""
