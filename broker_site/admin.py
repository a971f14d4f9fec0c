"""Register the pages of the console; Django imports this module for them."""
