"""Archive, report on and replay messages with Spark.

It reaches the broker through its tables and the lake, and imports nothing of it. The broker imports
`pipeline.contract` alone.
"""
