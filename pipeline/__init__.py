"""Archive, report on and replay messages with Spark.

It reaches the broker through its tables and through the lake alone; neither imports the other.
"""
