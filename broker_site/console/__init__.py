"""The frame and the pages of the operators' console that concern the whole installation."""
