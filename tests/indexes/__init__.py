"""Every query that claims, sweeps, lists or shows is served by an index, however large tables are.

- `judge`: catches real queries; says which of them sort, scan, or read rows that nobody asked for.
- `world`: some thousand rows in skewed states, in every large table.
- `test_api`: every address of the API document that answers GET, its filters, its pages both ways.
- `test_console`: every page of the admin, its filters, its search, its orders, its rows.
- `test_delivery`: dispatch, claim, settle, release, repairs, replays, health and metrics.
- `test_sweeps`: the sweeps and retention.
"""
