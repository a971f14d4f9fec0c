"""What jobs are made of: questions to Spark, and where their answers go."""
