"""A shop that receives signed webhooks: `before.py` without the client, `after.py` with it."""
