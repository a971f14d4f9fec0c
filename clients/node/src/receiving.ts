/**
 * Receive webhooks in a web application: verify, deduplicate, call the handler of the event type.
 *
 * The methods that are named after frameworks return what these take; none of them is imported.
 */

import type { IncomingMessage, ServerResponse } from "node:http";

import { Reject, Retry, SignatureError } from "./errors.js";
import type { Logger } from "./logging.js";
import { dateOf } from "./models.js";
import { type HeadersLike, lowerCased, TOLERANCE_S, verify } from "./signing.js";
import { onceFor, type Store } from "./stores.js";

const MAX_BODY_BYTES = 16 * 1024 * 1024;
/** Tells the broker that another attempt is of no use (docs/api.md, "What your answer means"). */
const NEVER = { "Hookstation-Retry": "never" };

/** One signing secret, or several while one replaces another. */
export type Secrets = string | readonly string[];

/** A message as it was delivered. Its fields are those of docs/api.md. */
export interface HookEvent {
  /** The same at every attempt and replay. */
  readonly id: string;
  readonly eventType: string;
  readonly channel: string;
  readonly consumer: string;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly priority: number;
  readonly orderingKey: string;
  readonly acceptedAt: Date | undefined;
  readonly isReplay: boolean;
  readonly isTest: boolean;
  /** Where to acknowledge later; empty unless the consumer is registered with `ack`. */
  readonly ackUrl: string;
  readonly contentType: string;
  /** The headers of the request, their names in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** The exact bytes of the body. */
  readonly body: Buffer;
}

/** What to answer the broker. */
export interface HookResponse {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** How `Hooks` receives. */
export interface HooksOptions {
  /** The consumer's signing secret, or a function that finds it; else `HOOKSTATION_SECRET`. */
  secret?: Secrets | (() => Secrets | Promise<Secrets>);
  /** Remembers handled messages: a repeat is acknowledged and not handled. None unless given. */
  store?: Store;
  /** Seconds that a timestamp may be off; 300 unless given. */
  tolerance?: number;
  /** Bytes of a body at most; 16 MiB unless given. */
  maxBodyBytes?: number;
  /** Whether handlers get the samples that the broker sends for a test; false unless given. */
  handleTests?: boolean;
  /** Where failures are reported; `console` unless given. */
  logger?: Logger;
}

/** How `Hooks.on` calls a handler. */
export interface HandlerOptions<T> {
  /** Makes the handler's first argument of the body. A body for which it throws is rejected. */
  parse?: (body: unknown) => T;
  /** Tells handlers apart that share a store; the patterns unless given. */
  name?: string;
}

/** Called for each message. `body` is parsed JSON, else text, else bytes, by its content type. */
export type HookHandler<T> = (body: T, event: HookEvent) => unknown;

interface Registered {
  patterns: readonly string[];
  name: string;
  call: (event: HookEvent) => unknown;
}

/** A request of Express or of `node:http`. */
type NodeRequest = IncomingMessage & { body?: unknown };

/** What `Hooks.fastify` needs of an instance of Fastify. */
interface FastifyLike {
  removeAllContentTypeParsers(): unknown;
  addContentTypeParser(
    type: string,
    options: { parseAs: "buffer"; bodyLimit: number },
    parser: (request: unknown, body: Buffer, done: (error: null, body: Buffer) => void) => void,
  ): unknown;
  setErrorHandler(
    handler: (error: FastifyFault, request: unknown, reply: FastifyReply) => unknown,
  ): unknown;
  post(
    path: string,
    handler: (request: FastifyRequest, reply: FastifyReply) => Promise<unknown>,
  ): unknown;
}

interface FastifyRequest {
  headers: Record<string, string | string[] | undefined>;
  body: unknown;
}

interface FastifyReply {
  code(status: number): FastifyReply;
  headers(headers: Record<string, string>): FastifyReply;
  send(body: string): unknown;
}

interface FastifyFault {
  statusCode?: number;
  message: string;
}

/** The handlers of one application, and the ways into it. */
export class Hooks {
  private readonly options: HooksOptions;
  private readonly maxBodyBytes: number;
  private readonly logger: Logger;
  private readonly handlers: Registered[] = [];

  constructor(options: HooksOptions = {}) {
    this.options = options;
    this.maxBodyBytes = options.maxBodyBytes ?? MAX_BODY_BYTES;
    this.logger = options.logger ?? console;
  }

  /**
   * Register a handler for event types: a name, `order.*` for all below, `*` for all.
   *
   * Handlers are asked in the order of their registration, and the first that matches is called.
   * What no handler matches is rejected: register `*` to accept it.
   */
  // `any`: `unknown` would refuse every handler that names the type of its body.
  on<T = any>(
    patterns: string | readonly string[],
    handler: HookHandler<T>,
    { parse, name }: HandlerOptions<T> = {},
  ): this {
    const listed = typeof patterns === "string" ? [patterns] : patterns;
    const call = (event: HookEvent): unknown => handler(bodyOf(event, parse), event);
    this.handlers.push({ patterns: listed, name: name ?? listed.join(), call });
    return this;
  }

  /** The response to a request; `body` is its exact bytes. */
  async handle(headers: HeadersLike, body: Uint8Array): Promise<HookResponse> {
    if (body.length > this.maxBodyBytes) return this.tooLong();
    try {
      const event = await this.verified(headers, body);
      if (event.isTest && !this.options.handleTests) return { status: 204, headers: {}, body: "" };
      const found = this.handlers.find((one) => one.patterns.some((it) => matches(it, event)));
      if (found === undefined) throw new Reject(`No handler for "${event.eventType}".`);
      const { store } = this.options;
      const call = async (): Promise<unknown> => found.call(event);
      await (store ? onceFor(store, `${found.name}:${event.id}`, call) : call());
      return { status: 204, headers: {}, body: "" };
    } catch (error) {
      return this.responseTo(error);
    }
  }

  /**
   * The response to a request of the Fetch API: Bun, Deno, Remix, SvelteKit and the like.
   *
   * The body of the request must not have been read.
   */
  async fetch(request: Request): Promise<Response> {
    const { status, headers, body } = await this.readAndHandle(
      request.headers,
      request.body === null ? [] : chunksOf(request.body),
    );
    return new Response(status === 204 ? null : body, { status, headers });
  }

  /** Next.js, in a route handler: `export const POST = hooks.next();`. */
  next(): (request: Request) => Promise<Response> {
    return (request) => this.fetch(request);
  }

  /** Hono: `app.post("/hooks", hooks.hono())`. */
  hono(): (context: { req: { raw: Request } }) => Promise<Response> {
    return ({ req }) => this.fetch(req.raw);
  }

  /**
   * Express: `app.post("/hooks", hooks.express())`; also a listener of `node:http`.
   *
   * Register it before `express.json()`: the signature is of the exact bytes, which that drops.
   * `express.raw({ type: () => true })` keeps them.
   */
  express(): (request: NodeRequest, response: ServerResponse) => Promise<void> {
    return async (request, response) => {
      const { status, headers, body } = await this.handleNode(request);
      response.writeHead(status, { ...headers, "Content-Length": Buffer.byteLength(body) });
      response.end(body);
    };
  }

  /** Fastify: `app.register(hooks.fastify("/hooks"))`. Other routes keep their parsers. */
  fastify(path = "/hooks"): (instance: any) => Promise<void> {
    // `any`: the parameter's type is Fastify's own, which this package does not depend on.
    return async (instance: FastifyLike) => {
      instance.removeAllContentTypeParsers();
      const limit = { parseAs: "buffer", bodyLimit: this.maxBodyBytes } as const;
      instance.addContentTypeParser("*", limit, (_, body, done) => done(null, body));
      const answer = (reply: FastifyReply, said: HookResponse): unknown =>
        reply.code(said.status).headers(said.headers).send(said.body);
      instance.setErrorHandler(({ statusCode = 500, message }, _, reply) =>
        answer(reply, problem(statusCode, message, statusCode === 413 ? NEVER : {})),
      );
      instance.post(path, async ({ headers, body }, reply) =>
        answer(reply, await this.handle(headers, (body as Buffer | undefined) ?? Buffer.of())),
      );
    };
  }

  private async handleNode(request: NodeRequest): Promise<HookResponse> {
    const { headers, body } = request;
    if (body instanceof Uint8Array) return this.handle(headers, body);
    if (request.readableEnded || request.readableDidRead) {
      const said = "The body was read before: register the webhook before express.json().";
      return this.responseTo(new Error(said));
    }
    return this.readAndHandle(headers, request);
  }

  private async readAndHandle(
    headers: HeadersLike,
    chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  ): Promise<HookResponse> {
    // Whoever stops reading a request of Node.js closes its connection: look at the length first.
    if (Number(allOf(headers)["content-length"] ?? 0) > this.maxBodyBytes) return this.tooLong();
    const read: Uint8Array[] = [];
    let length = 0;
    try {
      for await (const chunk of chunks) {
        length += chunk.length;
        if (length > this.maxBodyBytes) return this.tooLong();
        read.push(chunk);
      }
    } catch (error) {
      return this.responseTo(error);
    }
    return this.handle(headers, Buffer.concat(read));
  }

  private async verified(headers: HeadersLike, body: Uint8Array): Promise<HookEvent> {
    const { secret, tolerance = TOLERANCE_S } = this.options;
    const found = typeof secret === "function" ? await secret() : secret;
    const secrets = found ?? process.env.HOOKSTATION_SECRET;
    if (!secrets?.length) throw new Error("Pass the signing secret, or set HOOKSTATION_SECRET.");
    verify(secrets, headers, body, { tolerance });
    return eventOf(allOf(headers), Buffer.from(body));
  }

  private tooLong(): HookResponse {
    return problem(413, `${this.maxBodyBytes} bytes are allowed.`, NEVER);
  }

  /** What to answer after an error, so that the broker does what it means. */
  private responseTo(error: unknown): HookResponse {
    if (error instanceof SignatureError) {
      this.logger.warn(`a request was refused: ${error.message}`);
      return problem(401, error.message);
    }
    if (error instanceof Reject) {
      this.logger.warn(`a message was rejected: ${error.message}`);
      return problem(422, error.message, NEVER);
    }
    if (error instanceof Retry) {
      const wait = { "Retry-After": String(Math.ceil(error.after)) };
      // After a 503 the broker pauses the whole consumer, after a 409 this delivery alone.
      return problem(error.pause ? 503 : 409, error.message, wait);
    }
    this.logger.error("a handler failed:", error);
    return problem(500, error instanceof Error ? error.name : "Error");
  }
}

/** `detail` is shown to people beside the attempt. */
function problem(
  status: number,
  detail: string,
  headers: Record<string, string> = {},
): HookResponse {
  const said = { "Content-Type": "application/json", ...headers };
  return { status, headers: said, body: JSON.stringify({ detail }) };
}

/** Whether a pattern means an event type, by the broker's own rule. */
function matches(pattern: string, { eventType }: HookEvent): boolean {
  if (pattern.endsWith(".*")) return eventType.startsWith(pattern.slice(0, -1));
  return pattern === "*" || (pattern === eventType && eventType !== "");
}

function bodyOf<T>(event: HookEvent, parse: ((body: unknown) => T) | undefined): T {
  const { contentType, body } = event;
  let found: unknown = body;
  try {
    if (/^[^;]*[/+]json\b/i.test(contentType)) found = JSON.parse(body.toString());
    else if (/^text\//i.test(contentType)) found = body.toString();
    return parse === undefined ? (found as T) : parse(found);
  } catch (error) {
    throw new Reject(`The body cannot be used: ${(error as Error).message}`);
  }
}

function eventOf(headers: Record<string, string>, body: Buffer): HookEvent {
  const said = (name: string): string => headers[`hookstation-${name}`] ?? "";
  return {
    id: headers["webhook-id"] ?? "",
    eventType: said("event-type"),
    channel: said("channel"),
    consumer: said("consumer"),
    attempt: Number(said("attempt") || 1),
    maxAttempts: Number(said("max-attempts") || 1),
    priority: Number(said("priority") || 4),
    orderingKey: said("ordering-key"),
    acceptedAt: dateOf(said("accepted-at")),
    isReplay: said("replay") === "true",
    isTest: said("test") === "true",
    ackUrl: said("ack-url"),
    contentType: headers["content-type"] ?? "",
    headers,
    body,
  };
}

function allOf(headers: HeadersLike): Record<string, string> {
  if (headers instanceof Headers) return Object.fromEntries(headers.entries());
  return lowerCased(headers, []);
}

/** The chunks of a stream; Node.js 18 has no iterator of its type. */
async function* chunksOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    // Nothing happens where it was read to its end.
    await reader.cancel().catch(() => undefined);
  }
}
