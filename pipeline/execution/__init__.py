"""Run jobs: their options, Java, Spark, and progress on a terminal."""
