"""Serve the Amazon SQS protocol at the broker's own address (docs/sqs.md, S0-50).

A queue is a channel of kind queue with its pull consumer. `handler` reads requests, `signature`
authenticates them, `protocol` reads and writes both protocols (AWS JSON 1.0 and Query), and
`operations` maps the service's operations to functions.
"""
