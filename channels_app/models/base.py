"""Foundations that every model stands on: fields, time-ordered keys and versioned configuration."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.core.validators import MinValueValidator
from django.db import connection, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import F
from django.utils import timezone

from channels_app.change_marker import change_marker
from channels_app.models import raw
from channels_app.rules.ids import IdMaker
from channels_app.rules.limits import Quota
from channels_app.signals import delivery_changed

if TYPE_CHECKING:
    # django-stubs' fields are generic, Django's own are not.
    _BigInteger = models.BigIntegerField[int, int]
    _Char = models.CharField[str, str]
else:
    _BigInteger, _Char = models.BigIntegerField, models.CharField

BATCH_SIZE = 50
"""Rows of configuration in one INSERT: each may have 200 KB, and servers refuse what is above
``max_allowed_packet`` (16 MiB on MariaDB)."""
new_id = IdMaker()
"""One maker per process: unique across processes by its slot, re-seeded after a collision."""


class TimeOrderedKey(_BigInteger):
    """A 64-bit primary key made by the application (rules/ids.py).

    SQLite needs the bare word ``integer`` to make the key its row id; then every index ends in it
    and index order includes it, as in InnoDB.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        return "integer" if connection.vendor == "sqlite" else super().db_type(connection)


class ExactCharField(_Char):
    """Text compared byte for byte; MySQL's default collations fold case and trailing blanks.

    So does ``utf8mb4_bin`` with blanks: to it ``orders`` and ``orders `` are one name.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters


class DirectoryVersion(models.Model):
    """One row; each configuration write changes its number (see channels_app/config_cache.py)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    number = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.number)

    CURRENT: ClassVar = "SELECT number FROM channels_app_directoryversion WHERE id = 1"
    """Every fan-out asks: the ORM would take most of the time."""

    @classmethod
    def current(cls) -> int:
        """The number as it is now."""
        return cls.of(raw.read(cls.CURRENT))

    @staticmethod
    def of(rows: Sequence[tuple[int, ...]]) -> int:
        """The number in what `CURRENT` finds: nothing before anything was configured."""
        return rows[0][0] if rows else 0

    @classmethod
    def bump(cls, *, confirmed: bool = False) -> None:
        """Tell every process that configuration changed; call inside the changing transaction.

        Processes of this host look again at once, others within a second. Where it is to be
        ``confirmed``, the commit returns when every living pump acts on it.
        """
        if not cls.objects.filter(id=1).update(number=F("number") + 1):
            cls.objects.create(id=1, number=1)
        _once_after_commit(_mark_and_confirm if confirmed else change_marker.make)


def _mark_and_confirm() -> None:
    change_marker.make()
    delivery_changed.send(DirectoryVersion)


def _once_after_commit(work: Callable[[], None]) -> None:
    """Not for each of a thousand rows that one transaction changes."""
    if not (connection.run_on_commit and connection.run_on_commit[-1][1] is work):
        transaction.on_commit(work)


class Limited(models.Model):
    """How much may wait; null: the installation's limit."""

    max_waiting_messages = models.PositiveBigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)]
    )
    max_waiting_bytes = models.PositiveBigIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)]
    )

    class Meta:
        abstract = True

    def quota(self, default: Quota) -> Quota:
        """The limits in force."""
        own = self.max_waiting_messages, self.max_waiting_bytes
        return Quota(*(most if it is None else it for it, most in zip(own, default, strict=True)))


class Versioned(models.Model):
    """Configuration with an ETag: each save moves its version and the directory's."""

    steers_pumps: ClassVar[bool] = False
    """Whether pumps act on it: whoever changes such a row is answered when all of them follow."""
    natural_key: ClassVar[tuple[str, str]]
    """Two columns that identify a row; ``save_all`` needs them on MySQL."""

    version = models.PositiveIntegerField(default=0, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.version += 1
        self.updated_at = timezone.now()
        if (wanted := kwargs.get("update_fields")) is not None:
            kwargs["update_fields"] = {*wanted, "version", "updated_at"}
        is_new = self._state.adding  # nothing goes out to what was not there before
        with transaction.atomic():
            super().save(*args, **kwargs)
            DirectoryVersion.bump(confirmed=self.steers_pumps and not is_new)

    @classmethod
    def save_all(cls, rows: Sequence[Self]) -> None:
        """Save many in a few statements; the directory's version moves once.

        The caller holds locks on rows that exist: an upsert would bring a deleted one back.
        """
        if not rows:
            return
        now = timezone.now()
        for row in rows:
            row.version += 1
            row.updated_at = now
        new = [row for row in rows if row._state.adding]
        changed = [row for row in rows if not row._state.adding]
        with transaction.atomic():
            cls._insert_all(new)
            cls._update_all(changed)
            DirectoryVersion.bump(confirmed=cls.steers_pumps and bool(changed))

    @classmethod
    def _insert_all(cls, rows: Sequence[Self]) -> None:
        cls._default_manager.bulk_create(rows, batch_size=BATCH_SIZE)
        if all(row.pk is not None for row in rows):
            return
        # MySQL, unlike MariaDB, does not return the keys of the rows of one INSERT.
        named = {tuple(getattr(row, name) for name in cls.natural_key): row for row in rows}
        first, second = zip(*named, strict=True)
        chosen = {f"{cls.natural_key[0]}__in": set(first), f"{cls.natural_key[1]}__in": set(second)}
        for *name, key in cls._default_manager.filter(**chosen).values_list(*cls.natural_key, "pk"):
            if row := named.get(tuple(name)):
                row.pk = key

    @classmethod
    def _update_all(cls, rows: Sequence[Self]) -> None:
        """Upserts: databases take many rows in one INSERT, and one in an UPDATE."""
        has_target = connection.features.supports_update_conflicts_with_target
        cls._default_manager.bulk_create(
            rows,
            batch_size=BATCH_SIZE,
            update_conflicts=True,
            update_fields=[it.name for it in cls._meta.concrete_fields if not it.primary_key],
            unique_fields=["pk"] if has_target else None,
        )

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        with transaction.atomic():
            gone = super().delete(*args, **kwargs)
            DirectoryVersion.bump(confirmed=self.steers_pumps)
        return gone
