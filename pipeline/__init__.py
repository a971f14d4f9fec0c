"""The data pipeline: archive, reports and replay from the lake, on Spark.

It reaches the broker through its tables and through the lake alone; neither imports the other.
"""
