"""A shop that receives signed webhooks: `before.py` by itself, `after.py` with the client."""
