"""Keep the archive's files and ledger, and read rows from the lake or the tables."""
