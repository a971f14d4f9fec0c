"""Pure functions of the pipeline: they need neither Spark nor a database."""
