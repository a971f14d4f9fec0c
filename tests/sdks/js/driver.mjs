// The driver of the AWS SDK for JavaScript: each line names an operation and has its parameters.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { createHash, createHmac } from "node:crypto";

import * as sqs from "@aws-sdk/client-sqs";
import { SignatureV4 } from "@smithy/signature-v4";

const require = createRequire(import.meta.url);
const client = new sqs.SQSClient();

class Sha256 {
  constructor(secret) {
    this.hash = secret ? createHmac("sha256", secret) : createHash("sha256");
  }
  update(data) {
    this.hash.update(data);
  }
  async digest() {
    return this.hash.digest();
  }
}

async function presigned({ address, query }) {
  const { hostname, port, host, protocol } = new URL(address);
  const signer = new SignatureV4({
    service: "sqs",
    region: await client.config.region(),
    credentials: await client.config.credentials(),
    sha256: Sha256,
  });
  const request = { method: "GET", protocol, hostname, port, path: "/", query, headers: { host } };
  const signed = await signer.presign(request, { expiresIn: 300 });
  return { url: `${address}/?${new URLSearchParams(signed.query)}` };
}

function described(error) {
  return {
    class: error.constructor.name.replace(/Exception$/, ""),
    code: error.Error?.Code ?? error.Code ?? error.name,
    name: error.name,
    status: error.$metadata?.httpStatusCode,
    message: error.message,
  };
}

async function answered({ op, input, ...words }) {
  if (op === "hello") return { version: require("@aws-sdk/client-sqs/package.json").version };
  if (op === "presign") return presigned(words);
  return client.send(new sqs[`${op}Command`](input));
}

const read = (name, value) => (name === "BinaryValue" ? Buffer.from(value, "base64") : value);

function show(name, value) {
  return this[name] instanceof Uint8Array ? Buffer.from(this[name]).toString("base64") : value;
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = { ok: await answered(JSON.parse(line, read)) };
  } catch (error) {
    answer = { error: described(error) };
  }
  process.stdout.write(`${JSON.stringify(answer, show)}\n`);
}
