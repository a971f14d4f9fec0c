"""Who acts, and what they may do: the same policy for every door."""
