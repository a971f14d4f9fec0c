// What the tests share: servers that answer by a script, and webhooks that are signed.

import { createServer } from "node:http";

import { sign } from "../../dist/esm/index.js";

export const SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
export const OTHER = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
export const ACCEPTED = {
  id: "msg_1",
  duplicate: false,
  matched_consumers: 1,
  due_at: "2026-11-21T08:08:08.383Z",
  url: "http://127.0.0.1/api/v1/messages/msg_1",
};
export const SILENT = { warn() {}, error() {} };

/** A server until the test ends. Each answer is `[status, body, headers]`, "reset" or "silence". */
export async function serving(test, ...answers) {
  const requests = [];
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const { method, url, headers } = request;
    requests.push({ method, url, headers, body: Buffer.concat(chunks).toString() });
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    if (answer === "reset") return request.socket.destroy();
    if (answer === "silence") return undefined;
    const [status, body, said = {}] = answer;
    response.writeHead(status, { "Content-Type": "application/json", ...said });
    return response.end(JSON.stringify(body));
  });
  const url = await listening(test, server);
  return { url, requests, server };
}

/** The address of a server that listens until the test ends. */
export async function listening(test, server) {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  test.after(() => {
    server.closeAllConnections?.();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

/** An address where nothing listens. */
export async function refusing() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return `http://127.0.0.1:${port}`;
}

/** The headers of a delivery as the broker sends it. */
export function signed(body, { id = "msg_1", secret = SECRET, at, ...headers } = {}) {
  const seconds = at ?? Math.floor(Date.now() / 1000);
  return {
    "content-type": "application/json",
    "webhook-id": id,
    "webhook-timestamp": String(seconds),
    "webhook-signature": sign(secret, id, seconds, body),
    "hookstation-event-type": "order.created",
    "hookstation-attempt": "1",
    ...headers,
  };
}
