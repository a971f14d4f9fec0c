"""The same kills with a worker of the Node.js client."""

import pytest

from tests.crash import test_stream_kills as kills
from tests.support import node

pytestmark = pytest.mark.e2e

started, channel = kills.started, kills.channel
test_kill_9_of_the_server = kills.test_kill_9_of_the_server_loses_nothing
test_kill_9_of_the_worker = kills.test_kill_9_of_the_worker_loses_nothing
test_a_stop_and_a_start = kills.test_a_stop_and_a_start_of_the_broker_lose_nothing

WORKER = """
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [module, channel, handled, workerId, resume] = process.argv.slice(1);
const { Hookstation, Worker } = await import(pathToFileURL(module));

async function handle({ id }) {
  await sleep(5);
  appendFileSync(handled, `${id}\\n`);
}

const options = { concurrency: 8, lease: 3, wait: 1, workerId, resume: resume === "resume" };
await new Worker(new Hookstation({ timeout: 60 }), channel, "all", handle, options).run();
"""


@pytest.fixture(scope="module")
def program() -> list[str]:
    """The command of the worker, without its arguments."""
    client = node.require() / "dist/esm/index.js"
    return ["node", "--input-type=module", "-e", WORKER, str(client)]
