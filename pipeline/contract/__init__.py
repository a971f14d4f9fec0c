"""Names and formats that pipeline and broker share. It imports only the standard library."""
