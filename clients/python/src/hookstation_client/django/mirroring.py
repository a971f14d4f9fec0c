"""Publish the creation, update and deletion of a model's rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.core.serializers import serialize
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models, transaction
from django.db.models.signals import post_delete, post_save

from hookstation_client.django.outbox import publish_on_commit

_mirrored: set[tuple[type[models.Model], str]] = set()


def mirror(
    model: type[models.Model],
    channel: str,
    *,
    fields: Iterable[str] | None = None,
    event_type: str | None = None,
) -> None:
    """Publish each creation, update and deletion of a row, if its transaction commits.

    Call it in ``AppConfig.ready``. The event type is ``order.created``, ``order.updated`` or
    ``order.deleted`` for a model ``Order``, unless ``event_type`` gives another first part. The
    ordering key is the row, so that consumers with ``ordering`` get its changes in order. The body
    has ``event``, ``model``, ``pk`` and ``fields``: all columns, or those in the argument.

    The model's ``save`` and the write to the outbox become one transaction, even if none is open.
    Changes that do not call ``save`` or ``delete`` (``QuerySet.update``, ``bulk_create``, plain
    SQL) send no signals in Django and are not published. Raises FieldDoesNotExist.
    """
    kind = event_type or model._meta.model_name
    chosen = [model._meta.get_field(name).name for name in fields] if fields is not None else None
    if (model, channel) in _mirrored:
        raise ValueError(f"{model._meta.label} is already mirrored to {channel}.")
    _mirrored.add((model, channel))

    def publish(instance: models.Model, event: str, using: str) -> None:
        label, key = model._meta.label_lower, str(instance.pk)
        body = {"event": event, "model": label, "pk": instance.pk, "fields": shown(instance)}
        publish_on_commit(
            channel,
            json.dumps(body, cls=DjangoJSONEncoder),
            content_type="application/json",
            event_type=f"{kind}.{event}",
            ordering_key=_ordering_key(f"{label}:{key}"),
            using=using,
        )

    def shown(instance: models.Model) -> Any:
        names = chosen or [field.name for field in model._meta.concrete_fields]
        return serialize("python", [instance], fields=names)[0]["fields"]

    def saved(instance: models.Model, created: bool, using: str, **more: Any) -> None:
        publish(instance, "created" if created else "updated", using)

    def deleted(instance: models.Model, using: str, **more: Any) -> None:
        publish(instance, "deleted", using)

    post_save.connect(saved, sender=model, weak=False)
    post_delete.connect(deleted, sender=model, weak=False)
    _save_in_transaction(model)


def _save_in_transaction(model: type[models.Model]) -> None:
    """Run ``save`` and its ``post_save`` signal in one transaction.

    Django commits a plain ``save`` before it sends the signal. If the process were killed in
    between, the row would have changed without an event.
    """
    original = model.save_base
    if getattr(original, "is_mirrored", False):
        return

    def save_base(self: models.Model, *args: Any, **kwargs: Any) -> None:
        using = kwargs.get("using") or self._state.db
        with transaction.atomic(using=using):
            original(self, *args, **kwargs)

    save_base.is_mirrored = True  # type: ignore[attr-defined]  # tells the next mirror()
    model.save_base = save_base  # type: ignore[method-assign]  # documented in mirror()


def _ordering_key(text: str) -> str:
    """Return the text as printable ASCII of at most 255 characters, as the broker requires."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return "".join(one if " " <= one <= "~" else "_" for one in plain)[:255]
