"""Compute latency percentiles alone: `python -m bench.pipeline.percentiles`.

This is a part of `usage`, with the jobs' own code: Spark sums attempts by hour, consumer and
bucket, and the percentiles are computed from the sums.
"""

from collections import defaultdict

from pyspark.sql import functions as f

from pipeline import settings
from pipeline.broker.database import Database
from pipeline.contract import histogram
from pipeline.execution import session
from pipeline.lake.datasets import Datasets
from pipeline.transforms import endpoints

ARRIVED = ("delivered", "delivered_oversized")


def main() -> int:
    """Return the number of hours of consumers."""
    chosen = settings.read()
    database = Database(chosen.database_url)
    with session.start(chosen, "percentiles") as spark:
        frames = Datasets(spark, database, chosen)
        columns = ["consumer_id", "started_at", "outcome", "total_ms"]
        rows = frames.attempts(None, frames.readable_until(), columns).where(
            f.col("outcome").isin(*ARRIVED)
        )
        hour = f.date_trunc("hour", "started_at").alias("hour")
        place = endpoints.bucket(f.col("total_ms")).alias("place")
        counts: defaultdict[tuple[object, int], dict[int, int]] = defaultdict(dict)
        for row in rows.groupBy(hour, "consumer_id", place).count().toLocalIterator():
            counts[row["hour"], row["consumer_id"]][row["place"]] = row["count"]
        found = [
            [histogram.percentile(sums, share) for share in (50, 95, 99)]
            for sums in counts.values()
        ]
    database.close()
    return len(found)


if __name__ == "__main__":
    print(main())
