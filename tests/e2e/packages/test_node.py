"""The Node.js client: its own tests, the contents of its package, and the names in its guide."""

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support import node
from tests.support.toolchains import ROOT

GUIDE = ROOT / "docs/clients/node.md"
KINDS = ("client.ts", "schedules.ts")


ADAPTERS = """
import { createServer } from "node:http";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";
import { Hooks, verify } from "hookstation-client";

const hooks = new Hooks();
express().post("/hooks", hooks.express());
createServer(hooks.express());
void Fastify().register(hooks.fastify("/hooks"));
new Hono().post("/hooks", hooks.hono());
export const POST: (request: Request) => Promise<Response> = hooks.next();
createServer((request) => verify(["whsec_..."], request.headers, ""));
verify("whsec_...", new Headers(), Buffer.of());
hooks.on("order.*", (order: { id: number }) => order.id);
"""
COMMONJS = """
import client = require("hookstation-client");
const hooks: client.Hookstation = new client.Hookstation();
void hooks.publish("orders", {}).then((message: client.Message) => message.isDuplicate);
"""


@pytest.fixture(scope="module")
def client() -> Path:
    return node.require()


def test_unit_tests_of_the_client_pass(client: Path) -> None:
    node.run_tests(client, "unit")


def test_package_holds_both_kinds_of_modules_their_types_and_the_licence(client: Path) -> None:
    with tarfile.open(node.packed(client)) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        proto = archive.extractfile("package/dist/hookstation.proto")
        assert proto is not None
        assert proto.read() == node.PROTO.read_bytes()

    modules = {path.stem for path in (node.SOURCE / "src").glob("*.ts")}
    assert names == {
        *(f"dist/cjs/{name}.{end}" for name in modules for end in ("js", "d.ts")),
        *("dist/esm/index.js", "dist/esm/index.d.ts"),
        *("dist/cjs/package.json", "package.json", "README.md", "CHANGELOG.md", "LICENSE"),
        "dist/hookstation.proto",
    }  # fmt: skip


def test_an_application_in_typescript_compiles_with_the_package(
    client: Path, tmp_path: Path
) -> None:
    """Compile each block of the guide and README, each framework, and CommonJS, with ``strict``."""
    node.install(client, tmp_path)
    blocks = [
        block
        for page in (GUIDE, node.SOURCE / "README.md")
        for block in re.findall(r"```ts\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
    for number, block in enumerate(blocks):
        (tmp_path / f"block{number}.ts").write_text(block)
    (tmp_path / "adapters.ts").write_text(ADAPTERS)
    (tmp_path / "commonjs.cts").write_text(COMMONJS)

    assert len(blocks) > 5
    node.compile_all(client, tmp_path)


def test_package_has_no_dependencies() -> None:
    package = json.loads((node.SOURCE / "package.json").read_text())

    assert not package.keys() & {"dependencies", "optionalDependencies"}
    optional = {name: {"optional": True} for name in package["peerDependencies"]}
    assert package["peerDependenciesMeta"] == optional
    assert optional.keys() == {"@grpc/grpc-js", "@grpc/proto-loader"}
    assert package["engines"] == {"node": f">={node.OLDEST}"}


def test_npm_packages_are_left_out_where_there_is_no_npm(tmp_path: Path) -> None:
    for tool in ("sh", "dirname"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)

    done = subprocess.run(
        [str(tmp_path / "sh"), str(ROOT / "tools/npm")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "the npm packages are not built" in done.stdout


def test_every_public_name_has_a_doc_comment(client: Path) -> None:
    """Exported functions, classes and interfaces, and the methods of classes."""
    public = re.compile(
        r"export (?:declare )?(?:function|class|interface) (\w+)"
        r"|    (?!private|constructor)(\w+)(?:<.*>)?\(.*"
    )
    seen, silent = [], []
    for path in sorted((client / "dist/cjs").glob("*.d.ts")):
        before = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if found := public.match(line):
                seen.append(found[1] or found[2])
                if not before.endswith("*/"):
                    silent.append(f"{path.name}: {line}")
            before = line

    assert {"Hookstation", "publish", "sign", "run", "fastify"} <= {*seen}
    assert silent == []


def test_guide_names_every_method() -> None:
    public = {
        name
        for kind in KINDS
        for name in re.findall(
            r"^  (?:async )?\*?(\w+)(?:<.*>)?\(", (node.SOURCE / "src" / kind).read_text(), re.M
        )
    } - {"constructor", "schedules"}
    named = set(re.findall(r"`(\w+)`", GUIDE.read_text(encoding="utf-8")))

    assert "publish" in public
    assert public - named == set()
