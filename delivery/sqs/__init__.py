"""The SQS door: Amazon SQS's protocol at the broker's own address (docs/sqs.md, S0-50).

A queue is a channel of kind queue with its pull consumer. `handler` reads requests, `signature`
checks who sent them, `protocol` reads and writes both forms (AWS JSON 1.0 and Query), and
`operations` names what each of the service's operations calls.
"""
