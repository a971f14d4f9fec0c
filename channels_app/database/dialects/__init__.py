"""Say what differs between databases, in one module for each. No other asks which one is used.

`raw.dialect` is the one of the broker's database, chosen once. What a statement needs of it is
computed when its module is imported, so nothing is looked up for each row. Another database is one
more module, and its class in `DIALECTS`.
"""

from django.db.backends.base.base import BaseDatabaseWrapper

from channels_app.database.dialects.base import Dialect
from channels_app.database.dialects.mysql import MySQL
from channels_app.database.dialects.sqlite import SQLite

EMBEDDED = SQLite()
"""That of an installation that names no database."""
DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (EMBEDDED, MySQL())}
BY_SCHEME = {scheme: dialect for dialect in DIALECTS.values() for scheme in dialect.schemes}
ADDRESSES = " or ".join(dialect.address for dialect in DIALECTS.values())
"""What a DATABASE_URL looks like, for operators."""


def of(connection: BaseDatabaseWrapper) -> Dialect:
    """The dialect of this connection's database."""
    return DIALECTS[connection.vendor]
