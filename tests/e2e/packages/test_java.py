"""The Java client as a package: its JARs, its unit tests, and the names in its guide."""

import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.support import toolchains
from tests.support.toolchains import JAVA, JAVAC, ROOT

GRPC = ROOT / "clients/java-grpc"
GUIDE = ROOT / "docs/clients/java.md"
MAIN = JAVA / "src/main/java"


@pytest.fixture(autouse=True)
def _java() -> None:
    toolchains.need_or_skip("java", "javac", "jar", "javadoc")


def version() -> str:
    found = re.search(r"<version>(.+?)</version>", (JAVA / "pom.xml").read_text())
    assert found
    return found[1]


def test_unit_tests_pass() -> None:
    built = toolchains.build_java()

    said = toolchains.run(
        ["java", "-cp", str(built / "classes"), "dev.hookstation.client.UnitTests"], JAVA
    )

    assert "FAIL" not in said
    assert said.count("PASS") >= 30


def test_jars_hold_the_package_its_sources_and_its_licence(tmp_path: Path) -> None:
    (servlets,) = toolchains.spark_jars("jakarta.servlet-api")

    toolchains.run(
        ["./build", "javadoc"], JAVA, {"OUT": str(tmp_path), "SERVLET_API": str(servlets)}
    )

    name = f"hookstation-client-{version()}"
    jar = zipfile.ZipFile(tmp_path / f"{name}.jar").namelist()
    sources = zipfile.ZipFile(tmp_path / f"{name}-sources.jar").namelist()
    pages = zipfile.ZipFile(tmp_path / f"{name}-javadoc.jar").namelist()
    wanted = {path.relative_to(MAIN).as_posix() for path in MAIN.rglob("*.java")}
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


def test_version_is_everywhere_the_same_and_the_licence_is_there() -> None:
    code = (MAIN / "dev/hookstation/client/Hookstation.java").read_text()

    assert f'VERSION = "{version()}"' in code
    assert f"{version()}, the first release" in (JAVA / "CHANGELOG.md").read_text()
    assert f"<version>{version()}</version>" in (GRPC / "pom.xml").read_text()
    assert f"{version()}, the first release" in (GRPC / "CHANGELOG.md").read_text()
    for folder in (JAVA, GRPC):
        assert (folder / "LICENSE").read_text() == (ROOT / "clients/python/LICENSE").read_text()


def test_only_the_servlet_imports_what_the_jdk_does_not_have() -> None:
    foreign = re.compile(
        r"^import (?:static )?(?!java\.|javax\.(?:crypto|net)|dev\.hookstation)(.+);", re.M
    )
    found = {
        path.parent.name: set(foreign.findall(path.read_text()))
        for path in MAIN.rglob("*.java")
        if foreign.search(path.read_text())
    }

    assert set(found) == {"httpserver", "servlet"}
    assert all(name.startswith("com.sun.net.httpserver.") for name in found["httpserver"])
    assert all(name.startswith("jakarta.servlet.") for name in found["servlet"])


def test_guide_names_every_method() -> None:
    code = (MAIN / "dev/hookstation/client/Hookstation.java").read_text()
    methods = set(re.findall(r"^    public (?!static)[\w<>]+ (\w+)\(", code, re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", GUIDE.read_text()))

    assert len(methods) > 15
    assert methods - named == set()


def test_blocks_of_guide_and_readmes_compile(tmp_path: Path) -> None:
    """Each block is compiled as the body of a method, after its imports; Spring is left out."""
    built, pages = toolchains.build_java(), [GUIDE, JAVA / "README.md"]
    try:
        compile_blocks(tmp_path, toolchains.java_path(), *pages, GRPC / "README.md")
    except toolchains.Missing:
        compile_blocks(tmp_path, str(built / "classes"), *pages)


def compile_blocks(tmp_path: Path, path: str, *pages: Path) -> None:
    blocks = [
        block
        for page in pages
        for block in re.findall(r"```java\n(.*?)```", page.read_text(), re.DOTALL)
        if "springframework" not in block
    ]
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
    try:
        built = toolchains.build_java_grpc()
    except toolchains.Missing as missing:
        pytest.skip(str(missing))
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


def test_without_maven_no_jar_is_built(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/jars", tmp_path / "tools")
    for program in ("dirname", "javac"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))

    said = toolchains.run(["/bin/sh", "tools/jars"], tmp_path, {"PATH": str(tmp_path)})

    assert said.startswith("mvn: not here, the Java client is not built.")
    assert not (tmp_path / "dist").exists()
