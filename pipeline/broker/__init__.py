"""Read the broker's database and keep the rows of pipeline runs that the console shows."""
