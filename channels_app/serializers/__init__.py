"""What configured resources look like when written and shown: API, pages, `apply`, OpenAPI."""
