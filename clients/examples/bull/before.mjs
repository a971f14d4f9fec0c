// A shop's letters: `work` sends them, `add 1 5` asks for five and waits, `post 1 5` does not wait.

import { appendFileSync } from "node:fs";

import Queue from "bull";

const redis = { host: "127.0.0.1", port: Number(process.env.REDIS_PORT ?? 6379) };
const settings = { lockDuration: 5_000 };
const letters = new Queue(process.env.SHOP_QUEUE ?? "Letters", { redis, settings });
const [command, ...numbers] = process.argv.slice(2);

/** Send one letter. The first attempt for a number that ends with 3 finds no ink. */
async function send(job) {
  const { number, to } = job.data;
  await job.progress(50);
  if (number % 10 === 3 && job.attemptsMade === 0) throw new Error("no ink");
  if (to === "nobody") {
    job.discard(); // no further attempt
    throw new Error("no such address");
  }
  await new Promise((resolve) => setTimeout(resolve, Number(process.env.SHOP_PAUSE_MS ?? 20)));
  appendFileSync(process.env.SHOP_LETTERS ?? "letters.txt", `${number}\n`);
  return { number, sentTo: to };
}

letters.on("error", (error) => console.error(error.message));
if (command === "work") {
  letters.process(4, send);
  letters.on("completed", (job) => console.log(`letter ${job.data.number} is sent`));
  letters.on("failed", (job, error) => console.log(`letter ${job.data.number}: ${error.message}`));
  process.once("SIGTERM", () => letters.close());
  process.once("SIGINT", () => letters.close());
} else {
  const [first, last = first] = numbers.map(Number);
  const jobs = [];
  for (let number = first; number <= last; number += 1) {
    const data = { number, to: number % 10 === 9 ? "nobody" : `customer ${number}` };
    const options = { jobId: `letter-${number}`, attempts: 3, backoff: 200 };
    jobs.push(await letters.add(data, options));
    console.log(`letter ${number} is asked for`);
  }
  for (const job of command === "add" ? jobs : []) {
    const sent = await job.finished().catch((error) => error.message);
    console.log(JSON.stringify(sent));
  }
  await letters.close();
}
