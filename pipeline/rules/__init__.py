"""Pure functions of the pipeline: they know neither Spark nor a database, and may run anywhere."""
