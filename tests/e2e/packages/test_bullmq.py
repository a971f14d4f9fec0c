"""The packages for BullMQ and Bull: what they hold, and that a program in TypeScript compiles."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import node

PROGRAM = """
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


@pytest.mark.parametrize(
    ("build", "source"), [(node.build_bullmq, node.BULLMQ), (node.build_bull, node.BULL)]
)
def test_package_holds_its_modules_their_types_and_the_licence(
    build: Callable[[], Path], source: Path
) -> None:
    with tarfile.open(node.packed(node.built(build))) as archive:
        names = {name.removeprefix("package/") for name in archive.getnames()}

    modules = {path.stem for path in (source / "src").glob("*.ts")}
    assert names == {
        *(f"dist/cjs/{name}.{end}" for name in modules for end in ("js", "d.ts")),
        *("dist/esm/index.js", "dist/esm/index.d.ts"),
        *("dist/cjs/package.json", "package.json", "README.md", "CHANGELOG.md", "LICENSE"),
    }


def test_programs_in_typescript_compile_with_the_packages(tmp_path: Path) -> None:
    folders = {
        "hookstation-client": node.require(),
        "@hookstation/bullmq": node.built(node.build_bullmq),
        "@hookstation/bull": node.built(node.build_bull),
    }
    modules = tmp_path / "node_modules"
    (modules / "@hookstation").mkdir(parents=True)
    for name, folder in folders.items():
        (modules / name).symlink_to(folder)
    (modules / "@types").symlink_to(folders["@hookstation/bullmq"] / "node_modules/@types")
    (tmp_path / "program.ts").write_text(PROGRAM)
    (tmp_path / "bull.cts").write_text(BULL)

    node.compile_all(folders["hookstation-client"], tmp_path)
