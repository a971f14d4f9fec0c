"""Build the compiled clients and their programs into ``.clients``, once per state of their sources.

The clients need only the standard library of their language. Only their gRPC streams, and the
examples that Maven builds, need libraries, which are downloaded.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from django.conf import settings

ROOT = Path(settings.BASE_DIR)
BUILT = ROOT / ".clients"
GO = ROOT / "clients/go"
GO_ENVIRONMENT = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
GO_GRPC = GO / "grpc"
GO_GRPC_ENVIRONMENT = {"GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
JAVA = ROOT / "clients/java"
JAVA_MAIN = JAVA / "src/main/java"
JAVA_GRPC = ROOT / "clients/java-grpc"
PROTO = ROOT / "delivery/grpc/hookstation.proto"
UNREACHED = ("Could not transfer", "Network is unreachable", "Unknown host", "offline mode")
"""What Maven says when it cannot reach its registry."""
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Java's options for short programs, which do not repay the second compiler or threads of GC."""
JVM = ("java", *QUICK_JVM)
JAVAC = ("--release", "17", "-encoding", "UTF-8", "-Xlint:all", "-Werror")
BUILD_S = 600.0
MAVEN = ("mvn", "-q", "-B", "-Dmaven.test.skip=true", "-DincludeScope=runtime")
MAVEN_PROJECT = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>hookstation.examples</groupId>
  <artifactId>all</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <modules>
    <module>client</module>
    <module>example</module>
  </modules>
</project>
"""
"""Builds the client and an example together: the client is not in a Maven repository."""


Built = TypeVar("Built")


class Missing(Exception):
    """This machine has no toolchain for the language, or cannot download what the program needs."""


def need(*programs: str) -> None:
    """Raise `Missing` unless all of these programs are in PATH."""
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        raise Missing(f"this machine has no {' and no '.join(absent)}")


def need_or_skip(*programs: str) -> None:
    """Skip the calling test unless all of these programs are in PATH."""
    built(lambda: need(*programs))


def built(build: Callable[[], Built]) -> Built:
    """Return what a function builds; skips the calling test if it raises `Missing`."""
    try:
        return build()
    except Missing as missing:
        pytest.skip(str(missing))


def run(command: Iterable[str], folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Return the standard output of a command; raises `AssertionError` if it fails."""
    done = subprocess.run(
        [*command],
        cwd=folder,
        # The Java programs of a build, such as javac and Maven, read it; it reaches stderr only.
        env={"JAVA_TOOL_OPTIONS": " ".join(QUICK_JVM), **os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def go_environment(folder: Path) -> dict[str, str]:
    """The settings of Go for a module of the client: only the one of streams needs libraries."""
    return GO_GRPC_ENVIRONMENT if folder == GO_GRPC else GO_ENVIRONMENT


def go_tests(folder: Path, *options: str, **environment: str) -> str:
    """Run tests of a module of the client for Go; returns what Go said about each."""
    command = ["go", "test", "-count=1", "-v", "-timeout", "500s", *options, "."]
    return run(command, folder, go_environment(folder) | environment)


def java_tests(path: str, name: str, **environment: str) -> str:
    """Run a class of tests of the client for Java; returns what it said about each."""
    command = [*JVM, "-cp", path, f"dev.hookstation.client.{name}"]
    said = run(command, JAVA, environment)
    assert "FAIL" not in said
    return said


def passed(said: str, pattern: str = "PASS") -> int:
    """How many tests passed, by what their runner said."""
    return len(re.findall(pattern, said, re.MULTILINE))


def blocks(language: str, *pages: Path) -> list[str]:
    """The blocks of code in this language in pages of the documentation."""
    found = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    return [block for page in pages for block in found.findall(page.read_text(encoding="utf-8"))]


def once(
    name: str, sources: Iterable[Path], build: Callable[[Path], None], state: str = ""
) -> Path:
    """Return the folder that ``build`` fills, called again only when a source or state has changed.

    Processes of one test run take turns: the first one builds, the others use its result.
    """
    digest = hashlib.sha256(state.encode())
    for path in sorted(sources):
        digest.update(f"{path}\n".encode() + path.read_bytes())
    BUILT.mkdir(exist_ok=True)
    folder, stamp = BUILT / name, BUILT / f"{name}.stamp"
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != digest.hexdigest():
            stamp.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            stamp.write_text(digest.hexdigest())
    return folder


def build_go() -> Path:
    """Return the folder with ``driver``, the conformance driver of the client for Go."""
    need("go")

    def build(folder: Path) -> None:
        command = ["go", "build", "-o", str(folder / "driver"), "./internal/driver/rest"]
        run(command, GO, GO_ENVIRONMENT)

    return once("go", [*GO.rglob("*.go"), GO / "go.mod"], build)


def need_go_grpc() -> None:
    """Raise `Missing` unless the modules for the streams of the client for Go are here or come."""
    need("go")
    try:
        run(["go", "mod", "download"], GO_GRPC, GO_GRPC_ENVIRONMENT)
    except (AssertionError, subprocess.TimeoutExpired) as failed:
        raise Missing(f"Go's modules cannot be downloaded: {failed}") from None


def build_go_grpc() -> Path:
    """Return the folder with ``driver`` and ``worker``, programs that receive over streams."""
    need_go_grpc()

    def build(folder: Path) -> None:
        command = ["go", "build", "-o", str(folder), "./internal/driver", "./internal/worker"]
        run(command, GO_GRPC, GO_GRPC_ENVIRONMENT)

    return once("go-grpc", [*GO.rglob("*.go"), *GO.rglob("go.*")], build)


def build_java() -> Path:
    """Return the folder with ``classes``: the client for Java, its driver and its unit tests."""
    need("java", "javac")
    sources = sorted(path for path in (JAVA / "src").rglob("*.java") if "servlet" not in path.parts)

    def build(folder: Path) -> None:
        run(["javac", *JAVAC, "-d", str(folder / "classes"), *map(str, sources)], JAVA)

    return once("java", sources, build)


def build_java_grpc() -> Path:
    """Return the folder with ``jars``: of the client for Java, its streams, and what they need.

    `build_java` builds the programs that run with it. Raises `Missing` without Maven or a registry.
    """
    need("java", "javac", "mvn")
    build_java()
    sources = [
        path
        for folder in (JAVA, JAVA_GRPC)
        for path in [*folder.rglob("src/main/**/*"), *folder.glob("*.xml"), folder / "LICENSE"]
        if path.is_file()
    ]

    def build(folder: Path) -> None:
        source = folder / "source"
        for path in (*sources, PROTO):
            copy = source / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        maven(source / JAVA_GRPC.relative_to(ROOT), "package", "dependency:copy-dependencies")
        (folder / "jars").mkdir()
        for jar in source.glob("clients/*/target/**/*.jar"):
            shutil.copy(jar, folder / "jars")

    return once("java-grpc", [*sources, PROTO], build)


def maven(folder: Path, *goals: str) -> None:
    """Build both artifacts of the client for Java; raises `Missing` without a registry."""
    command = ["mvn", "-q", "-B", "-f", "both.xml", "-DincludeScope=runtime", *goals]
    try:
        run(command, folder)
    except AssertionError as error:
        if any(text in str(error) for text in UNREACHED):
            raise Missing("Maven reaches no registry") from error
        raise


def java_path() -> str:
    """The class path of the client for Java with its streams and its tests."""
    return f"{BUILT / 'java/classes'}:{build_java_grpc() / 'jars'}/*"


def build_go_example() -> Path:
    """Return the folder with ``before`` and ``after``, the programs of the example for Go."""
    need("go")
    example = ROOT / "clients/examples/go-net-http"

    def build(folder: Path) -> None:
        run(["go", "build", "-o", str(folder), "./before", "./after"], example, GO_ENVIRONMENT)

    sources = [*GO.rglob("*.go"), *example.rglob("*.go"), *example.glob("go.*")]
    return once("go-example", sources, build)


def build_java_example() -> Path:
    """Return the folder with the classes ``Before`` and ``After`` of the example for Java."""
    client = build_java() / "classes"
    sources = sorted((ROOT / "clients/examples/java-httpserver").glob("*.java"))

    def build(folder: Path) -> None:
        run(["javac", *JAVAC, "-cp", str(client), "-d", str(folder), *map(str, sources)], JAVA)

    return once("java-example", [*sources, *(JAVA / "src/main").rglob("*.java")], build)


def build_maven_example(name: str) -> Path:
    """Return the folder ``target`` of an example that Maven builds, with its packages.

    Raises `Missing` without JDK, Maven or Maven Central.
    """
    need("java", "javac", "mvn")
    example = ROOT / "clients/examples" / name

    def build(folder: Path) -> None:
        for source, copy in ((JAVA, "client"), (example, "example")):
            shutil.copytree(source, folder / copy, ignore=shutil.ignore_patterns("target"))
        (folder / "pom.xml").write_text(MAVEN_PROJECT)
        try:
            run([*MAVEN, "package", "dependency:copy-dependencies"], folder)
        except AssertionError as error:
            if "Could not transfer" in str(error):
                raise Missing("Maven does not reach Maven Central") from error
            raise

    own = [path for path in (example / "src").rglob("*") if path.is_file()]
    client = [*(JAVA / "src/main").rglob("*.java"), JAVA / "pom.xml"]
    built = once(f"maven-example-{name}", [*own, example / "pom.xml", *client], build)
    return built / "example/target"


def spark_jars(*names: str) -> list[Path]:
    """Return PySpark's jars by the prefixes of their names; skips the test without PySpark.

    Among them are the servlet API and Jetty, a servlet container.
    """
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        pytest.skip("this environment has no PySpark, whose jars hold the API of servlets")
    folder = Path(found.origin).parent / "jars"
    return [path for name in names for path in sorted(folder.glob(f"{name}*.jar"))]
