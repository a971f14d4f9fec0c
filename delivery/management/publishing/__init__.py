"""Publishing a file of messages: read its lines, send them in batches, say what became of each."""
