"""Create deliveries and move them from state to state, in short transactions."""
