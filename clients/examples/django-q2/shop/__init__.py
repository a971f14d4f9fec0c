"""A shop with a django-q2 cluster that writes letters."""
