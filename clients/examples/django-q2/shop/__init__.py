"""A shop whose letters are written by a django-q2 cluster."""
