"""What the ORM does not do: raw statements, transactions, the database's clock."""
