"""What is put into the broker's processes from outside, for a profile."""
