"""The Java client as a package: its JARs, its unit tests, and the code in its guide."""

import re
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import toolchains
from tests.support.toolchains import JAVA, JAVA_GRPC, JAVA_MAIN, JAVAC, ROOT


@pytest.fixture(autouse=True)
def _java() -> None:
    toolchains.need_or_skip("java", "javac", "jar", "javadoc")


def version() -> str:
    found = re.search(r"<version>(.+?)</version>", (JAVA / "pom.xml").read_text())
    assert found
    return found[1]


def test_unit_tests_pass() -> None:
    classes = toolchains.build_java() / "classes"

    assert toolchains.passed(toolchains.java_tests(str(classes), "UnitTests")) >= 30


def test_jars_hold_the_package_its_sources_and_its_licence(tmp_path: Path) -> None:
    (servlets,) = toolchains.spark_jars("jakarta.servlet-api")

    toolchains.run(
        ["./build", "javadoc"], JAVA, {"OUT": str(tmp_path), "SERVLET_API": str(servlets)}
    )

    name = f"hookstation-client-{version()}"
    jar = zipfile.ZipFile(tmp_path / f"{name}.jar").namelist()
    sources = zipfile.ZipFile(tmp_path / f"{name}-sources.jar").namelist()
    pages = zipfile.ZipFile(tmp_path / f"{name}-javadoc.jar").namelist()
    wanted = {path.relative_to(JAVA_MAIN).as_posix() for path in JAVA_MAIN.rglob("*.java")}
    assert {entry for entry in sources if entry.endswith(".java")} == wanted
    classes = {name.replace(".java", ".class") for name in wanted if "package-info" not in name}
    assert classes <= set(jar)
    assert all(entry.startswith(("dev/hookstation/", "META-INF/", "dev/")) for entry in jar)
    assert "META-INF/LICENSE" in jar
    assert "META-INF/LICENSE" in sources
    assert "dev/hookstation/client/Hookstation.html" in pages


def test_without_the_servlet_api_the_jar_has_no_servlet(tmp_path: Path) -> None:
    toolchains.run(["./build"], JAVA, {"OUT": str(tmp_path), "SERVLET_API": ""})

    jar = zipfile.ZipFile(tmp_path / f"hookstation-client-{version()}.jar").namelist()
    assert "dev/hookstation/client/httpserver/WebhookHttpHandler.class" in jar
    assert not [entry for entry in jar if "servlet" in entry]


def test_only_the_servlet_imports_what_the_jdk_does_not_have() -> None:
    foreign = re.compile(
        r"^import (?:static )?(?!java\.|javax\.(?:crypto|net)|dev\.hookstation)(.+);", re.M
    )
    found = {
        path.parent.name: set(foreign.findall(path.read_text()))
        for path in JAVA_MAIN.rglob("*.java")
        if foreign.search(path.read_text())
    }

    assert set(found) == {"httpserver", "servlet"}
    assert all(name.startswith("com.sun.net.httpserver.") for name in found["httpserver"])
    assert all(name.startswith("jakarta.servlet.") for name in found["servlet"])


def test_blocks_of_guide_and_readmes_compile(tmp_path: Path) -> None:
    """Each block is compiled as the body of a method, after its imports; Spring is left out."""
    pages = [ROOT / "docs/clients/java.md", JAVA / "README.md"]
    path = str(toolchains.build_java() / "classes")
    with suppress(toolchains.Missing):
        path = toolchains.java_path()
        pages.append(JAVA_GRPC / "README.md")
    blocks = [it for it in toolchains.blocks("java", *pages) if "springframework" not in it]
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        lines = block.splitlines()
        imports = [line for line in lines if line.startswith("import ")]
        code = "\n".join(line for line in lines if not line.startswith("import "))
        (tmp_path / f"Block{number}.java").write_text(
            "\n".join(imports)
            + f"\nclass Block{number} {{ static void run() throws Exception {{\n{code}\n}} }}\n"
        )
    files = [str(path) for path in tmp_path.glob("*.java")]
    # Annotations of gRPC's classes need libraries that gRPC does not bring along.
    options = [*JAVAC, "-Xlint:-classfile", "-cp", path, "-d", str(tmp_path)]

    toolchains.run(["javac", *options, *files], tmp_path)


def test_jars_of_streams_and_client_go_to_dist(tmp_path: Path) -> None:
    built = toolchains.built(toolchains.build_java_grpc)
    # What is compiled there already need not be compiled again.
    shutil.copytree(built / "source", tmp_path, dirs_exist_ok=True)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/jars", tmp_path / "tools")

    toolchains.run(["tools/jars"], tmp_path)

    jars = {
        path.name: zipfile.ZipFile(path).namelist()
        for path in sorted((tmp_path / "dist").iterdir())
    }
    assert list(jars) == [
        f"hookstation-client-{version()}-sources.jar",
        f"hookstation-client-{version()}.jar",
        f"hookstation-client-grpc-{version()}-sources.jar",
        f"hookstation-client-grpc-{version()}.jar",
    ]
    of_client, of_streams = list(jars.values())[1], list(jars.values())[3]
    assert "dev/hookstation/client/servlet/WebhookServlet.class" in of_client
    assert "dev/hookstation/client/grpc/GrpcStreams.class" in of_streams
    assert "META-INF/services/dev.hookstation.client.Streams$Provider" in of_streams
    assert all("META-INF/LICENSE" in names for names in jars.values())
