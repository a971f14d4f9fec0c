"""What a process imports: the console only where somebody can open or check its pages."""

import subprocess
import sys

import pytest
from django.conf import settings

SCRIPT = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
import django
django.setup()
{work}
print("delivery.admin" in sys.modules)
"""
CHECKED = """
from django.core.management import load_command_class
command = load_command_class("delivery", "{name}")
command.check(tags=command.requires_system_checks)
"""
"""Loads and checks a command as before its start."""


@pytest.mark.slow("starts a process")
@pytest.mark.parametrize(
    ("work", "is_loaded"),
    [
        pytest.param(CHECKED.format(name="worker"), False, id="worker"),
        pytest.param(CHECKED.format(name="broker"), False, id="supervisor"),
        pytest.param("import broker_site.urls", True, id="web"),
        pytest.param(
            "from django.core.management import call_command; call_command('check')",
            True,
            id="check",
        ),
    ],
)
def test_process_loads_the_console_only_where_it_is_needed(work: str, is_loaded: bool) -> None:
    printed = subprocess.check_output(
        [sys.executable, "-c", SCRIPT.format(work=work)], cwd=settings.BASE_DIR, text=True
    )

    assert printed.splitlines()[-1] == str(is_loaded)
