"""Run jobs: their options, Java and Spark."""
