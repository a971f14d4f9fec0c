"""A shop whose letters a cluster of django-q2 writes."""
