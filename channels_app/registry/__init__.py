"""Services that write and cache configuration: channels, consumers, keys, teams."""
