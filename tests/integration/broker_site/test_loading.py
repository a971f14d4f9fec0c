"""What a process imports, keeps open, and leaves to the garbage collector."""

import os
import subprocess
import sys

import pytest
from django.conf import settings
from django.db import connection

pytestmark = [
    pytest.mark.slow("starts a process"),
    pytest.mark.skipif(connection.vendor == "mysql", reason="needs no database"),
]

SETUP = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django
django.setup()
"""
LOADED = 50_000
"""Minimum number of objects that the collector ignores; the site loads more than twice as many."""


def printed_by(script: str, **environment: str) -> list[str]:
    """Return the lines that a process prints."""
    printed = subprocess.check_output(
        [sys.executable, "-c", script],
        cwd=settings.BASE_DIR,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    return printed.splitlines()


def test_processes_without_requests_load_no_console_and_no_serializers() -> None:
    script = f"""{SETUP}
from django.core.management import call_command, load_command_class

def checked(name):
    command = load_command_class("delivery", name)
    command.check(tags=command.requires_system_checks)

def loaded():
    print([module in sys.modules for module in ("delivery.admin", "rest_framework.serializers")])

checked("broker"); loaded()
load_command_class("broker_site", "migrate").check(databases=["default"]); loaded()
import delivery.pump.pump; loaded()
checked("worker"); loaded()
call_command("check", stdout=sys.stderr); loaded()
"""
    supervisor, migration, pump, worker, everything = printed_by(script)

    assert supervisor == migration == pump == "[False, False]"
    assert worker.startswith("[False, ")
    assert everything == "[True, True]"


def test_what_is_preloaded_has_nothing_that_forks_must_not_share() -> None:
    script = f"""{SETUP}
import threading
from delivery.cluster import children
from delivery.processes.task_queue import stopping
children.preload(web=True)
shared = {{stopping._reader, stopping._writer}}  # meant for the forks of a cluster
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and int(name) not in shared and os.path.lexists(f"/proc/self/fd/{{name}}"):
        print(os.readlink(f"/proc/self/fd/{{name}}").partition(":")[0])
print(threading.active_count())
"""
    *opened, threads = printed_by(script)

    assert threads == "1"
    assert not {"pipe", "socket", "anon_inode"} & set(opened)


def test_a_web_process_freezes_what_it_loaded_for_the_garbage_collector() -> None:
    script = """
import gc
for site in ("broker_site.server.wsgi", "broker_site.server.granian"):
    __import__(site)
    assert gc.isenabled()
    print(gc.get_freeze_count(), len(gc.get_objects()))
"""
    lines = printed_by(script, DJANGO_SETTINGS_MODULE="broker_site.settings")
    before, after = ([int(number) for number in line.split()] for line in lines)

    assert before[0] < LOADED / 10, "nobody else freezes objects"
    assert before[1] > LOADED
    assert after[0] > LOADED
    assert after[1] < LOADED / 10
