"""Hides the tests' psycopg from the broker, which has none where users install it.

Django REST framework would load it with Django's fields for PostgreSQL: 0.1 s at each start.
"""

raise ImportError("the broker does not use PostgreSQL")
