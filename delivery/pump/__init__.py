"""The pump: claims due deliveries, sends them concurrently, records the results."""
