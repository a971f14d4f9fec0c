"""Serve programs over gRPC: streams that receive with credits, and streams that publish.

The calls have the checks, limits and errors of the REST API, because they run the same functions
(delivery/pull/calls.py, channels_app/ingest/sequencing.py).
"""
