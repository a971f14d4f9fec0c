"""The Java client's servlet in a real container: the Jetty that PySpark brings along."""

import os
import subprocess
from pathlib import Path

import httpx
import pytest
from hookstation_client import Hookstation

from tests.support import ports, toolchains
from tests.support.broker import wait_until
from tests.support.toolchains import JAVA

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
PROGRAM = Path(__file__).parent / "java/JettyShop.java"


def test_servlet_answers_the_broker(hooks: Hookstation, channel: str, tmp_path: Path) -> None:
    toolchains.need_or_skip("java", "javac")
    jars = toolchains.spark_jars("jakarta.servlet-api", "spark-core", "slf4j-api", "log4j")
    path = ":".join([str(tmp_path), str(toolchains.build_java() / "classes"), *map(str, jars)])
    servlet = sorted((JAVA / "src/main/java/dev/hookstation/client/servlet").glob("*.java"))
    java = [*toolchains.JVM, "-cp", path]
    sources = [*map(str, servlet), str(PROGRAM)]
    toolchains.run(["javac", "-cp", path, "-d", str(tmp_path), *sources], tmp_path)
    port = ports.claim()
    url = f"http://127.0.0.1:{port}/hooks"
    made = hooks.register(channel, "shop", url=url, retry=[1], max_attempts=3)
    output = tmp_path / "output"

    with (
        output.open("wb") as out,
        subprocess.Popen(
            [*java, "JettyShop", str(port)],
            env=os.environ | {"HOOKSTATION_SECRET": made["secret"]},
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            wait_until(lambda: _answers(url), PATIENCE_S, "no Jetty", output.read_text)
            forged = httpx.post(url, content=b"{}", trust_env=False)
            endless = httpx.post(url, content=iter([b"{}"]), trust_env=False)
            for order in ("accept", "reject", "retry"):
                hooks.publish(channel, {"id": order}, event_type="order.created")
            wait_until(
                lambda: (
                    sorted(it["state"] for it in hooks.deliveries(channel, "shop"))
                    == ["Dead", "Delivered", "Delivered"]
                ),
                PATIENCE_S,
                "not all is settled",
                output.read_text,
            )
        finally:
            process.kill()

    (dead,) = hooks.dead_letters(channel, "shop")
    assert (dead["reason"], dead["attempt_count"]) == ("permanent_failure", 1)
    assert {"accept 1", "retry 2"} <= set(output.read_text().splitlines())
    assert (forged.status_code, endless.status_code) == (401, 411)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 405
    except httpx.TransportError:
        return False
