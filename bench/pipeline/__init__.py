"""Measure the data pipeline's jobs, and the same questions asked of MariaDB and DuckDB."""
