"""Re-encrypt stored responses with the first key, after a key rotation."""

from functools import partial

from channels_app.core import ids
from channels_app.core.encryption import KEY_ID_ENDS, Keyring, Unreadable
from channels_app.database import raw
from channels_app.registry import data_encryption, reencryption
from channels_app.registry.reencryption import ReencryptedBatch, RowKind, Slice
from delivery.models import Attempt

_HEADS = (
    f"SELECT id, SUBSTR(answer_excerpt, 1, {KEY_ID_ENDS}) "
    f"FROM {Attempt._meta.db_table} WHERE id > %s ORDER BY id LIMIT {reencryption.BATCH}"
)


def kind() -> RowKind:
    """Return the responses of consumers, for ``manage.py rotate_keys``."""
    return RowKind("response", Attempt.objects.count, partial(reencryption.batches, _answers))


def _answers(after: int) -> Slice:
    heads = raw.read(_HEADS, [after])
    primary = bytes.fromhex(data_encryption.encrypting_key_id())
    # Responses that are plain or have the current key are not read.
    old = [
        key
        for key, head in heads
        # SQLite's SUBSTR of an empty excerpt is NULL.
        if head and Keyring.is_encrypted(bytes(head)) and not bytes(head).endswith(primary)
    ]
    reencrypted, unreadable = 0, []
    for row in Attempt.objects.filter(id__in=old).order_by("id"):
        stored = data_encryption.StoredResponse(
            row.error, row.answer_headers, bytes(row.answer_excerpt)
        )
        try:
            answer = data_encryption.decrypt_response(row.delivery_id, row.number, stored)
        except Unreadable as error:
            public = ids.to_public(ids.ATTEMPT, row.id)
            unreadable.append(f"The response of attempt {public}: {error}")
            continue
        # The error's own column stays unchanged.
        to_store = answer._replace(error="" if row.error else answer.error)
        sealed = data_encryption.encrypt_response(row.delivery_id, row.number, to_store)
        reencrypted += Attempt.objects.filter(id=row.id).update(answer_excerpt=sealed)
    progress = ReencryptedBatch(len(heads), reencrypted, tuple(unreadable))
    return heads[-1][0] if heads else None, progress
