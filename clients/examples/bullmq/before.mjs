// A shop's letters: `work` sends them, `add 1 5` asks for five and waits, `post 1 5` does not wait.

import { appendFileSync } from "node:fs";

import { Queue, QueueEvents, UnrecoverableError, Worker } from "bullmq";

const connection = { host: "127.0.0.1", port: Number(process.env.REDIS_PORT ?? 6379) };
const name = process.env.SHOP_QUEUE ?? "Letters";
const [command, ...numbers] = process.argv.slice(2);

/** Send one letter. The first attempt for a number that ends with 3 finds no ink. */
async function send(job) {
  const { number, to } = job.data;
  await job.updateProgress({ printed: number });
  if (number % 10 === 3 && job.attemptsMade === 0) throw new Error("no ink");
  await new Promise((resolve) => setTimeout(resolve, Number(process.env.SHOP_PAUSE_MS ?? 20)));
  if (to === "nobody") throw new UnrecoverableError("no such address");
  appendFileSync(process.env.SHOP_LETTERS ?? "letters.txt", `${number}\n`);
  return { number, sentTo: to };
}

if (command === "work") {
  const worker = new Worker(name, send, { connection, concurrency: 4, lockDuration: 5_000 });
  worker.on("completed", (job) => console.log(`letter ${job.data.number} is sent`));
  worker.on("failed", (job, error) => console.log(`letter ${job?.data.number}: ${error.message}`));
  worker.on("error", (error) => console.error(error.message));
  process.once("SIGTERM", () => worker.close());
  process.once("SIGINT", () => worker.close());
} else {
  const queue = new Queue(name, { connection });
  const events = new QueueEvents(name, { connection });
  await events.waitUntilReady();
  const [first, last = first] = numbers.map(Number);
  const jobs = [];
  for (let number = first; number <= last; number += 1) {
    const data = { number, to: number % 10 === 9 ? "nobody" : `customer ${number}` };
    const opts = { jobId: `letter-${number}`, attempts: 3, backoff: { type: "fixed", delay: 200 } };
    jobs.push(await queue.add("letter", data, opts));
    console.log(`letter ${number} is asked for`);
  }
  for (const job of command === "add" ? jobs : []) {
    const sent = await job.waitUntilFinished(events).catch((error) => error.message);
    console.log(JSON.stringify(sent));
  }
  await events.close();
  await queue.close();
}
