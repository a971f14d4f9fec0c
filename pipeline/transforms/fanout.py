"""Count on executors to how many consumers each message would go today.

Like broker/executor.py it imports neither Spark nor Django.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from pipeline.core.forecast import matches

COPIES = "copies"
Patterns = Mapping[int, Sequence[Sequence[str]]]
"""By channel: the event types of each consumer."""


class Fanout:
    """Adds the number of consumers to messages."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self._known: dict[tuple[int, str], int] = {}

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same rows with one more column."""
        for batch in batches:
            channels, types = (
                batch.column(name).to_pylist() for name in ("channel_id", "event_type")
            )
            copies = [self.of(*pair) for pair in zip(channels, types, strict=True)]
            yield batch.append_column(COPIES, pa.array(copies, pa.int64()))

    def of(self, channel_id: int, event_type: str) -> int:
        """Return how many consumers of the channel want this event type."""
        key = (channel_id, event_type)
        if key not in self._known:
            some = self._patterns.get(channel_id, ())
            self._known[key] = sum(matches(patterns, event_type) for patterns in some)
        return self._known[key]
