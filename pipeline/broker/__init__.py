"""What the pipeline knows of the broker: its database, its rows, and the runs that people see."""
