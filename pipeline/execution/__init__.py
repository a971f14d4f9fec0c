"""What every job runs in: its options, Java, Spark, and its progress on a terminal."""
