"""Pull consumers: receive, wait, extend and settle leases, move messages."""
