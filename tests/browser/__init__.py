"""The console and the portal in a real browser, with a real broker and a real consumer.

- `person`: a browser window that records script errors, violations of the content security policy
  and requests to other hosts.
- `seed`: the rows in the broker's database before the first visit.
- `axe`: accessibility checks.
"""
