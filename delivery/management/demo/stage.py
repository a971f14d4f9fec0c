"""Set up the demo: tables, channel, consumers, key, team and logins, the same at every start."""

import fcntl
import os
import secrets
import string
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection

from channels_app.access.principal import Principal
from channels_app.core import keys
from channels_app.core.encryption import new_secret
from channels_app.database import dialects
from channels_app.models import ApiKey, Consumer, Team
from channels_app.registry import api_keys, teams
from delivery.cluster.children import Bind, Unusable
from delivery.management import applying, declaration
from delivery.management.base import Error

CHANNEL, PRODUCER, LOGIN = "orders", "shop", "demo"
TEAM, MEMBER = "shop", "mia"
PRINCIPAL = Principal("demo", is_operator=True)
CONSUMERS = {
    "healthy": "accepts everything at once",
    "slow": "answers after 600 ms",
    "recovering": "fails twice for each message, then accepts it",
    "failing": "refuses some: dead letters after 3 attempts; accepts replays",
}
SHOP = Path(__file__).with_name("shop.toml")
SECRETS = "receiver.secrets"
SCOPES = ["publish", "register", "read", "replay"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What was set up."""

    folder: Path
    web: Bind
    receiver: Bind
    key: str = field(repr=False)
    password: str = field(repr=False)
    """Password of the operator."""
    member_password: str = field(repr=False)
    consumers: dict[str, int] = field(default_factory=dict)
    """Id by name."""

    @property
    def secrets_file(self) -> Path:
        """The file with the receiver's secrets."""
        return self.folder / SECRETS

    @property
    def key_file(self) -> Path:
        """The file with the producer's key, for people to publish."""
        return self.folder / f"{PRODUCER}.key"


def lock(folder: Path) -> IO[str]:
    """Lock the folder against a second demo while the file is open. Raises Error."""
    file = (folder / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise Error(f"Another demo is running on {folder}. Stop it first.") from None
    return file


def forget(folder: Path) -> None:
    """Remove the data of earlier demos and the producer's key; other keys and passwords stay."""
    connection.close()
    dialects.EMBEDDED.delete(folder)
    with suppress(FileNotFoundError):
        (folder / f"{PRODUCER}.key").unlink()


def find_ports(port: int) -> tuple[Bind, Bind]:
    """Return free ports for the web server and the receiver. Raises Error."""
    try:
        web = Bind.parse(f"127.0.0.1:{port}")
        web.check_free()
    except Unusable as error:
        raise Error(
            str(error).replace(f"--bind 127.0.0.1:{port + 1}", f"--port {port + 1}")
        ) from None
    for other in range(port + 1, min(port + 50, 65536)):
        receiver = Bind("127.0.0.1", other)
        with suppress(Unusable):
            receiver.check_free()
            return web, receiver
    raise Error(f"No port after {port} is free for the receiver.")


def build(folder: Path, web: Bind, receiver: Bind) -> Stage:
    """Create what is missing, and keep what exists. Raises Error."""
    call_command("migrate", verbosity=0, interactive=False)
    password = _account(folder / "password", LOGIN, is_operator=True)
    member_password = _account(folder / "member.password", MEMBER, is_operator=False)
    if not Team.objects.filter(slug=TEAM).exists():
        founder = User.objects.get(username=MEMBER)
        teams.found({"slug": TEAM, "name": "Shop"}, founder=founder, principal=PRINCIPAL)
    consumers = {name: _secret(folder, name) for name in CONSUMERS}
    lines = "".join(f"/{name}={secret}\n" for name, secret in consumers.items())
    _write(folder / SECRETS, lines)
    text = string.Template(SHOP.read_text("utf-8")).substitute(receiver=receiver.url)
    applied = applying.apply(declaration.parse(text, folder), principal=PRINCIPAL)
    if applied.problems:
        raise Error("\n".join(str(problem) for problem in applied.problems))
    rows = Consumer.objects.filter(channel__slug=CHANNEL, client_id__in=CONSUMERS)
    ids = dict(rows.values_list("client_id", "id"))
    return Stage(
        folder=folder,
        web=web,
        receiver=receiver,
        key=_key(folder),
        password=password,
        member_password=member_password,
        consumers={name: ids[name] for name in CONSUMERS},
    )


def _secret(folder: Path, name: str) -> str:
    return _kept(folder / f"{name}.secret") or _write(folder / f"{name}.secret", new_secret())


def _key(folder: Path) -> str:
    """Return the producer's key: the last one if the database still has it, else a new one."""
    path = folder / f"{PRODUCER}.key"
    parsed = keys.parse(_kept(path))
    if parsed and ApiKey.objects.filter(key_id=parsed[0], revoked_at=None).exists():
        return _kept(path)
    values = {"scopes": SCOPES, "label": "demo", "all_channels": True}
    return _write(path, api_keys.create(values, principal=PRINCIPAL, producer=PRODUCER).secrets[0])


def _account(path: Path, name: str, *, is_operator: bool) -> str:
    """Create or reactivate an account; returns its password."""
    password = _kept(path) or _write(path, secrets.token_urlsafe(9))
    user, _ = User.objects.get_or_create(username=name, defaults={"email": f"{name}@localhost"})
    is_right = user.is_active and user.is_superuser is is_operator
    if not (is_right and user.check_password(password)):
        user.is_active, user.is_staff, user.is_superuser = True, is_operator, is_operator
        user.set_password(password)
        user.save()
    return password


def _kept(path: Path) -> str:
    return path.read_text("utf-8").strip() if path.exists() else ""


def _write(path: Path, text: str) -> str:
    """Write a file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text if text.endswith("\n") else f"{text}\n")
    return text
