/**
 * Receive webhooks in a web application: verify, deduplicate, call the handler of the event type.
 *
 * The methods that are named after frameworks return handlers or plugins for them; this module
 * imports none of them.
 */

import type { IncomingMessage, ServerResponse } from "node:http";

import { Reject, Retry, SignatureError } from "./errors.js";
import type { Logger } from "./logging.js";
import { dateOf } from "./models.js";
import { type HeadersLike, lowerCased, TOLERANCE_S, verify } from "./signing.js";
import { onceFor, type Store } from "./stores.js";

const MAX_BODY_BYTES = 16 * 1024 * 1024;
/** Tells the broker not to retry (docs/api.md, "What your answer means"). */
const NEVER = { "Hookstation-Retry": "never" };

/** One signing secret, or several during a rotation. */
export type Secrets = string | readonly string[];

/** A delivered message. docs/api.md describes its fields. */
export interface HookEvent {
  /** The id of the message, the same in every attempt and replay. */
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
  /** The URL for a later acknowledgement; empty unless the consumer has `ack` on. */
  readonly ackUrl: string;
  readonly contentType: string;
  /** The headers of the request, with lower-case names. */
  readonly headers: Readonly<Record<string, string>>;
  /** The exact bytes of the body. */
  readonly body: Buffer;
}

/** A response to the broker. */
export interface HookResponse {
  status: number;
  headers: Record<string, string>;
  body: string;
}

/** Options of `Hooks`. */
export interface HooksOptions {
  /**
   * The consumer's signing secret, or a function that returns it; by default `HOOKSTATION_SECRET`.
   */
  secret?: Secrets | (() => Secrets | Promise<Secrets>);
  /**
   * Stores handled messages, so that a repeat is acknowledged but not handled again. By default
   * none.
   */
  store?: Store;
  /** Largest difference of a timestamp in seconds; by default 300. */
  tolerance?: number;
  /** Maximum size of a body in bytes; by default 16 MiB. */
  maxBodyBytes?: number;
  /** Whether handlers receive test samples of the broker; by default false. */
  handleTests?: boolean;
  /** The logger; by default `console`. */
  logger?: Logger;
}

/** Options of `Hooks.on`. */
export interface HandlerOptions<T> {
  /** Converts the body to the handler's first argument. If it throws, the message is rejected. */
  parse?: (body: unknown) => T;
  /** Distinguishes handlers that share a store; by default the patterns. */
  name?: string;
}

/** Called for each message. `body` is parsed JSON, text or bytes, by its content type. */
export type HookHandler<T> = (body: T, event: HookEvent) => unknown;

interface Registered {
  patterns: readonly string[];
  name: string;
  call: (event: HookEvent) => unknown;
}

/** A request of Express or of `node:http`. */
type NodeRequest = IncomingMessage & { body?: unknown };

/** The methods of a Fastify instance that `Hooks.fastify` needs. */
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

/** The webhook handlers of one application, and its routes for web frameworks. */
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
   * Register a handler for event types: a name, a pattern such as `order.*`, or `*`.
   *
   * The first registered handler that matches is called. If none matches, the message is rejected;
   * register `*` to accept all others.
   */
  // `any`, because `unknown` would not accept handlers that declare the type of their body.
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

  /** Handle a request and return the response; `body` is its exact bytes. */
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
   * Handle a request of the Fetch API and return the response, for Bun, Deno, Remix or SvelteKit.
   *
   * The body of the request must be unread.
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
   * Register it before `express.json()`, which drops the exact bytes that the signature covers.
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
    // `any`, because the type is Fastify's, and this package does not depend on Fastify.
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
    // If a server stops reading a request, Node.js closes the connection, so check the length
    // first.
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
    return problem(413, `The body is larger than ${this.maxBodyBytes} bytes.`, NEVER);
  }

  /** Return the response to an error, so that the broker retries or rejects accordingly. */
  private responseTo(error: unknown): HookResponse {
    if (error instanceof SignatureError) {
      this.logger.warn(`request refused: ${error.message}`);
      return problem(401, error.message);
    }
    if (error instanceof Reject) {
      this.logger.warn(`message rejected: ${error.message}`);
      return problem(422, error.message, NEVER);
    }
    if (error instanceof Retry) {
      const wait = { "Retry-After": String(Math.ceil(error.after)) };
      // After a 503 the broker pauses the whole consumer, after a 409 only this delivery.
      return problem(error.pause ? 503 : 409, error.message, wait);
    }
    this.logger.error("handler failed:", error);
    return problem(500, error instanceof Error ? error.name : "Error");
  }
}

/** Return an error response; the console shows `detail` with the attempt. */
function problem(
  status: number,
  detail: string,
  headers: Record<string, string> = {},
): HookResponse {
  const said = { "Content-Type": "application/json", ...headers };
  return { status, headers: said, body: JSON.stringify({ detail }) };
}

/** Return whether a pattern matches an event type, by the broker's rule. */
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
    throw new Reject(`The body is invalid: ${(error as Error).message}`);
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

/** Iterate over the chunks of a stream; the type of Node.js 18 has no iterator. */
async function* chunksOf(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    // This has no effect if the stream was read to its end.
    await reader.cancel().catch(() => undefined);
  }
}
