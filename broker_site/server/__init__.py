"""Serve requests: granian, the applications for programs and people, their middleware."""
