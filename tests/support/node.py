"""Build the Node.js client with npm, and programs that have it installed."""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.support.toolchains import BUILD_S, ROOT, Missing, built, need, once

SOURCE = ROOT / "clients/node"
BULLMQ = ROOT / "clients/node-bullmq"
BULL = ROOT / "clients/node-bull"
EXAMPLES = ROOT / "clients/examples"
PROTO = ROOT / "delivery/grpc/hookstation.proto"
"""The build of the client copies it."""
OLDEST = 18
"""The oldest version of Node.js that the client supports."""
MADE_HERE = ("node_modules", "dist", "*.tgz")
QUIET = ("--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error")
AWAY = ("EAI_AGAIN", "ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")
"""Errors of npm when it cannot reach its registry."""


def build_client() -> Path:
    """Return the folder of the client with ``dist``, ``node_modules`` and the packed ``.tgz``.

    Raises `Missing` without Node.js, npm, or a registry.
    """
    _need_node()
    return once("node", [*_sources(SOURCE), PROTO], _build_client)


def build_bullmq() -> Path:
    """Return the folder of the backend of BullMQ, as `build_client` does."""
    build_client()
    return _build_beside("node-bullmq", BULLMQ, SOURCE)


def build_bull() -> Path:
    """Return the folder of the package with Bull's API, as `build_client` does."""
    build_bullmq()
    return _build_beside("node-bull", BULL, BULLMQ, SOURCE)


def _build_beside(name: str, source: Path, *others: Path) -> Path:
    """Build a package whose development dependencies are the folders beside it.

    In `BUILT` they have the same names as in ``clients``.
    """

    def build(folder: Path) -> None:
        _copy(source, folder)
        npm(folder, "ci")
        npm(folder, "pack")

    return once(name, [path for one in (source, *others) for path in _sources(one)], build)


def build_example(name: str) -> Path:
    """Return a copy of an example's folder with its packages and the client installed."""
    packages = [packed(build_client())]
    sources = [*_sources(EXAMPLES / name), *_sources(SOURCE)]
    if name in ("bull", "bullmq"):
        packages.append(packed(build_bullmq()))
        sources += _sources(BULLMQ)
    if name == "bull":
        packages.append(packed(build_bull()))
        sources += _sources(BULL)

    def build(folder: Path) -> None:
        _copy(EXAMPLES / name, folder)
        npm(folder, "ci")
        npm(folder, "install", "--no-save", "--no-package-lock", *map(str, packages))

    return once(f"node-example-{name}", sources, build)


def packed(client: Path) -> Path:
    """Return the ``.tgz`` that ``npm pack`` made in the folder of a built client."""
    (package,) = client.glob("*.tgz")
    return package


def require(example: str = "") -> Path:
    """Return `build_client` or `build_example`; skips the test if it cannot be built."""
    return built(lambda: build_example(example)) if example else built(build_client)


def run_tests(client: Path, folder: str, name: str = "*", **environment: str) -> None:
    """Run files of ``test`` of a built client with Node.js's test runner; all must pass."""
    files = sorted((client / "test" / folder).glob(f"{name}.test.mjs"))
    done = subprocess.run(
        [program("node"), "--test", *map(str, files)],
        cwd=client,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    assert files
    assert done.returncode == 0, done.stdout + done.stderr


def install(client: Path, folder: Path) -> None:
    """Unpack the packed client into ``node_modules`` of a folder, with its test dependencies."""
    modules = folder / "node_modules"
    modules.mkdir()
    for module in (client / "node_modules").iterdir():
        (modules / module.name).symlink_to(module)
    with tarfile.open(packed(client)) as archive:
        archive.extractall(modules, filter="data")
    (modules / "package").rename(modules / "hookstation-client")


def compile_all(client: Path, folder: Path) -> None:
    """Type-check all files of a folder with the compiler that built the client."""
    options = {
        "strict": True,
        "noEmit": True,
        "skipLibCheck": True,
        "target": "ES2022",
        "lib": ["ES2022"],
        "module": "NodeNext",
        "types": ["node"],
    }
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options}))
    done = subprocess.run(
        [program("node"), str(client / "node_modules/typescript/bin/tsc"), "-p", str(folder)],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    assert done.returncode == 0, done.stdout


def program(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found


def npm(folder: Path, *arguments: str) -> str:
    """Return the standard output of npm; raises `Missing` if it does not reach its registry."""
    done = subprocess.run(
        [program("npm"), *arguments, *QUIET],
        cwd=folder,
        env={**os.environ, "npm_config_update_notifier": "false"},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    if done.returncode and any(f"code {code}" in done.stderr for code in AWAY):
        raise Missing("npm does not reach its registry")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _need_node() -> None:
    need("node", "npm")
    version = subprocess.run(
        [program("node"), "--version"], capture_output=True, text=True, check=True
    )
    major = int(version.stdout.strip().removeprefix("v").partition(".")[0])
    if major < OLDEST:
        raise Missing(f"Node.js {OLDEST} or newer is needed, this machine has {major}")


def _sources(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part in path.parts for part in ("node_modules", "dist"))
    ]


def _copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns(*MADE_HERE), dirs_exist_ok=True)


def _build_client(folder: Path) -> None:
    _copy(SOURCE, folder)
    npm(folder, "ci")
    npm(folder, "pack")  # builds before it packs
