"""The archive: its files, the ledger of them, and rows wherever they are, in lake or tables."""
