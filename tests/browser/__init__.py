"""The console as people use it: a real browser, a real broker, a real consumer.

- `person`: somebody with a browser window who notices errors, broken promises of the content
  security policy and requests to foreign places.
- `seed`: what stands in the broker's database before anybody looks.
- `axe`: what a page gets wrong for people who cannot see or use a mouse.
"""
