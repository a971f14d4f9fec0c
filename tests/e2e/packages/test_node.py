"""The packages for Node.js: what they hold, and that programs in TypeScript compile with them."""

import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import node, toolchains
from tests.support.toolchains import ROOT

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
BULLMQ = """
import { type Job, NotSupported, Queue, Worker, createBrokerBackend } from "@hookstation/bullmq";

const connection = { url: "http://127.0.0.1:8000", key: "hsk_1" } as object;
const queue = new Queue<{ to: string }>("letters", { connection });
const work = async (job: Job<{ to: string }>): Promise<string> => job.data.to;
new Worker("letters", work, { connection }, createBrokerBackend({ url: "http://127.0.0.1:8000" }));
queue.add("letter", { to: "Ana" }).catch((error) => error instanceof NotSupported && error.feature);
"""
BULL = """
import Queue = require("@hookstation/bull");

const letters = new Queue("letters", { redis: { url: "http://127.0.0.1:8000", key: "hsk_1" } });
void letters.process("letter", 2, async (job) => job.progress(42));
void letters.add({ to: "Ana" }, { attempts: 3 }).then((job) => job.finished());
"""


@pytest.fixture(scope="module")
def client() -> Path:
    return node.require()


def test_unit_tests_of_the_client_pass(client: Path) -> None:
    node.run_tests(client, "unit")


@pytest.mark.parametrize(
    ("build", "source", "more"),
    [
        (node.build_client, node.SOURCE, {"dist/hookstation.proto"}),
        (node.build_bullmq, node.BULLMQ, set()),
        (node.build_bull, node.BULL, set()),
    ],
    ids=["client", "bullmq", "bull"],
)
def test_package_holds_both_kinds_of_modules_their_types_and_the_licence(
    build: Callable[[], Path], source: Path, more: set[str]
) -> None:
    with tarfile.open(node.packed(toolchains.built(build))) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}
        for name in more:
            copied = archive.extractfile(f"package/{name}")
            assert copied is not None
            assert copied.read() == node.PROTO.read_bytes()

    modules = {path.stem for path in (source / "src").glob("*.ts")}
    assert names == {
        *(f"dist/cjs/{name}.{end}" for name in modules for end in ("js", "d.ts")),
        *("dist/esm/index.js", "dist/esm/index.d.ts"),
        *("dist/cjs/package.json", "package.json", "README.md", "CHANGELOG.md", "LICENSE"),
        *more,
    }


def test_an_application_in_typescript_compiles_with_the_package(
    client: Path, tmp_path: Path
) -> None:
    """Compile each block of the guide and README, each framework, and CommonJS, with ``strict``."""
    node.install(client, tmp_path)
    blocks = toolchains.blocks("ts", ROOT / "docs/clients/node.md", node.SOURCE / "README.md")
    for number, block in enumerate(blocks):
        (tmp_path / f"block{number}.ts").write_text(block)
    (tmp_path / "adapters.ts").write_text(ADAPTERS)
    (tmp_path / "commonjs.cts").write_text(COMMONJS)

    assert len(blocks) > 5
    node.compile_all(client, tmp_path)


def test_programs_in_typescript_compile_with_bullmq_and_bull(client: Path, tmp_path: Path) -> None:
    bullmq = toolchains.built(node.build_bullmq)
    modules = tmp_path / "node_modules"
    (modules / "@hookstation").mkdir(parents=True)
    (modules / "hookstation-client").symlink_to(client)
    (modules / "@hookstation/bullmq").symlink_to(bullmq)
    (modules / "@hookstation/bull").symlink_to(toolchains.built(node.build_bull))
    (modules / "@types").symlink_to(bullmq / "node_modules/@types")
    (tmp_path / "program.ts").write_text(BULLMQ)
    (tmp_path / "bull.cts").write_text(BULL)

    node.compile_all(client, tmp_path)


def test_package_has_no_dependencies() -> None:
    package = json.loads((node.SOURCE / "package.json").read_text())

    assert not package.keys() & {"dependencies", "optionalDependencies"}
    optional = {name: {"optional": True} for name in package["peerDependencies"]}
    assert package["peerDependenciesMeta"] == optional
    assert optional.keys() == {"@grpc/grpc-js", "@grpc/proto-loader"}
    assert package["engines"] == {"node": f">={node.OLDEST}"}


@pytest.mark.parametrize(
    ("tool", "others", "sentence"),
    [
        ("npm", [], "npm: not here, the npm packages are not built."),
        ("jars", ["javac"], "mvn: not here, the Java client is not built."),
    ],
)
def test_packages_are_left_out_where_there_is_no_tool(
    tool: str, others: list[str], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / tool, tmp_path / "tools")
    for program in ("dirname", *others):
        (tmp_path / program).symlink_to(shutil.which(program) or "/bin/true")

    said = toolchains.run(["/bin/sh", f"tools/{tool}"], tmp_path, {"PATH": str(tmp_path)})

    assert said.startswith(sentence)
    assert not (tmp_path / "dist").exists()


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
