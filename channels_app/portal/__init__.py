"""The portal's pages about teams, members, producers and keys."""
