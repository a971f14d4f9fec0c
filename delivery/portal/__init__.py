"""The portal's pages about consumers, deliveries and replays."""
