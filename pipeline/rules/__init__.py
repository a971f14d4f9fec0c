"""Pure functions of the pipeline: they use neither Spark nor a database, and run anywhere."""
