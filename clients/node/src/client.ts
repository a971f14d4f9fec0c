/** The client: one method for each operation of the REST API. */

import { randomUUID } from "node:crypto";

import { Addresses } from "./addresses.js";
import { type Call, given, jsonCall, milliseconds, type Parameter, pathOf } from "./calls.js";
import { Delivery, type NackOptions, type ReleaseOptions } from "./delivery.js";
import {
  type BatchResult,
  batchResultOf,
  contentOf,
  headersOf,
  itemOf,
  type Message,
  messageOf,
  type Outgoing,
  type PublishOptions,
  receivedOf,
  type Resource,
  type Settings,
  type Settled,
  settledOf,
} from "./models.js";
import { Schedules } from "./schedules.js";
import { Transport } from "./transport.js";

/** Leases in one call. */
export const MAX_LEASES = 100;

/** Characters of an error that the broker keeps with an attempt. */
const MAX_ERROR = 300;
const TIMEOUT_S = 30;
const RETRIES = 6;
/** Seconds for which the broker may wait for the answer of a consumer that is tested. */
const TEST_WAIT_S = 30;
/** HTTP servers differ on other bytes in headers, and drop spaces at either end. JSON does not. */
const HEADER_VALUE = /^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?$/;

/** How a client is made. */
export interface ClientOptions {
  /** The API key; `HOOKSTATION_KEY` unless given. */
  key?: string;
  /** Seconds for one request; 30 unless given. A long poll waits longer by its own time. */
  timeout?: number;
  /** How often a failed request is repeated where that is safe; 6 unless given. */
  retries?: number;
  /** Used in place of the global `fetch`, for certificates, proxies and the like. */
  fetch?: typeof fetch;
}

/** A lease, or the message that holds it. */
export type Lease = string | { readonly lease: string };

/** What `receiveBatch` takes. */
export interface ReceiveOptions {
  /** Messages at most; 10 unless given. */
  max?: number;
  /** Seconds to wait while there is nothing, 0 to 20. */
  wait?: number;
  /** Seconds for which the messages are yours; 30 unless given. */
  lease?: number;
  workerId?: string;
  /** `sticky`: messages of an ordering key go to the same worker. */
  keys?: "sticky";
  /** Whether to begin with what a former worker of this `workerId` held. */
  resume?: boolean;
  /** Whether the messages are acknowledged as they are received. */
  autoAck?: boolean;
}

/** Which messages `messages` lists. */
export interface MessageFilter {
  state?: string;
  eventType?: string;
  /** The idempotency key with which this producer published it. */
  id?: string;
  /** Accepted at this instant or later. */
  from?: Date;
  /** Accepted before this instant. */
  to?: Date;
}

/** Which deliveries `deliveries` and `deadLetters` list. */
export interface DeliveryFilter {
  /** Of `deliveries` alone. */
  state?: string;
  outcome?: string;
  eventType?: string;
  from?: Date;
  to?: Date;
}

/** What `move` changes. */
export interface MoveOptions {
  deliverAt?: Date;
  /** Seconds. */
  deliverIn?: number;
  priority?: number;
  /** For people, in the audit log. */
  reason?: string;
  /** Only if the message still has this version; throws `Conflict` else. */
  version?: number;
}

/** Fields of a consumer, by the names of docs/api.md, and two shorter ones. */
export interface ConsumerSettings extends Settings {
  /** Where messages are sent to. A consumer without it pulls. */
  url?: string;
  /** Event types and patterns such as `order.*`, the API's `event_types`; none means all. */
  events?: string[];
}

/** What `request` sends. */
export interface RequestOptions {
  /** Sent as JSON. */
  json?: unknown;
  params?: Record<string, Parameter>;
  headers?: Record<string, string>;
  /** Whether sending it twice has the effect of sending it once; else true for all but POST. */
  isRepeatable?: boolean;
}

/**
 * The client of a broker.
 *
 * `url` is its address, or several of one broker: the first is used as long as it answers, then
 * the next one. `HOOKSTATION_URL` unless given, which may name several with commas between.
 */
export class Hookstation {
  /** The addresses, without a slash at the end. */
  readonly urls: readonly string[];
  private readonly transport: Transport;

  constructor(options?: ClientOptions);
  constructor(url: string | readonly string[] | undefined, options?: ClientOptions);
  constructor(
    first?: string | readonly string[] | ClientOptions,
    second: ClientOptions = {},
  ) {
    const isUrl = typeof first === "string" || Array.isArray(first);
    const options = isUrl || first === undefined ? second : (first as ClientOptions);
    const named = isUrl ? (first as string | string[]) : process.env.HOOKSTATION_URL;
    const listed = typeof named === "string" ? named.split(",") : (named ?? []);
    const trimmed = listed.map((url) => url.trim().replace(/\/+$/, "")).filter(Boolean);
    this.urls = [...new Set(trimmed)];
    if (!this.urls.length) throw new Error("Pass the broker's address, or set HOOKSTATION_URL.");
    for (const url of this.urls) {
      if (!/^https?:$/.test(new URL(url).protocol)) throw new Error(`${url} is no address.`);
    }
    const key = options.key ?? process.env.HOOKSTATION_KEY;
    if (!key) throw new Error("Pass the key, or set HOOKSTATION_KEY.");
    this.transport = new Transport({
      addresses: new Addresses(this.urls),
      key,
      timeout: options.timeout ?? TIMEOUT_S,
      retries: options.retries ?? RETRIES,
      fetch: options.fetch ?? ((...request) => fetch(...request)),
    });
  }

  // -- Publish -----------------------------------------------------------------------------------

  /**
   * Publish one message. When it returns, the broker has stored the message.
   *
   * `body` is sent as it is when it is a string or bytes, anything else as JSON.
   */
  async publish(channel: string, body: unknown, options: PublishOptions = {}): Promise<Message> {
    const said = { ...options, id: options.id ?? randomUUID() };
    const headers = headersOf(said);
    if (!Object.values(headers).every((value) => HEADER_VALUE.test(value))) {
      const [result] = await this.publishBatch(channel, [{ ...said, body }]);
      if (!result?.message) throw result?.error ?? new Error("The broker answered no result.");
      return result.message;
    }
    const [content, kind] = contentOf(body, options.contentType);
    const path = pathOf("channels", channel, "messages");
    const call = { method: "POST", path, headers: { "Content-Type": kind, ...headers }, content };
    return messageOf(await this.json(call));
  }

  /**
   * Publish up to 1,000 messages and 16 MiB in one request.
   *
   * All that are valid are stored in one transaction. The results are in the order of `messages`;
   * one that was refused holds its error.
   */
  async publishBatch(channel: string, messages: Iterable<Outgoing>): Promise<BatchResult[]> {
    const path = pathOf("channels", channel, "messages", "batch");
    const found = await this.json(jsonCall("POST", path, Array.from(messages, itemOf)));
    return found.items.map(batchResultOf);
  }

  // -- Messages ----------------------------------------------------------------------------------

  /** A message with its deliveries. */
  message(id: string): Promise<Resource> {
    return this.json({ method: "GET", path: pathOf("messages", id) });
  }

  /** The exact bytes of a message's body. */
  async body(id: string): Promise<Buffer> {
    const call = { method: "GET", path: pathOf("messages", id, "body") };
    return (await this.transport.send(call)).body;
  }

  /** The messages of a channel, newest first. */
  messages(channel: string, filter: MessageFilter = {}): AsyncGenerator<Resource, void> {
    const { eventType: event_type, id: idempotency_key, ...params } = filter;
    const path = pathOf("channels", channel, "messages");
    return this.pages(path, { ...params, event_type, idempotency_key });
  }

  /** Move a waiting message to another instant or priority. */
  move(id: string, options: MoveOptions): Promise<Resource> {
    const { deliverAt, deliverIn, priority, reason, version } = options;
    const delay_ms = milliseconds(deliverIn);
    const said = given({ due_at: deliverAt, delay_ms, priority, reason });
    return this.json(jsonCall("PATCH", pathOf("messages", id), said, ifMatch(version)));
  }

  /** Cancel what is still queued of a message. Twice is harmless. */
  cancel(id: string, options: { reason?: string; version?: number } = {}): Promise<Resource> {
    const { reason, version } = options;
    const path = pathOf("messages", id);
    return this.json({ method: "DELETE", path, params: { reason }, ...ifMatch(version) });
  }

  // -- Channels and consumers --------------------------------------------------------------------

  /** Create a channel or replace its settings. The same call twice changes nothing. */
  createChannel(channel: string, settings: Settings = {}): Promise<Resource> {
    return this.json(jsonCall("PUT", pathOf("channels", channel), settings));
  }

  /** A channel. */
  channel(channel: string): Promise<Resource> {
    return this.json({ method: "GET", path: pathOf("channels", channel) });
  }

  /** The channels that the key may use. */
  channels(): AsyncGenerator<Resource, void> {
    return this.pages(pathOf("channels"));
  }

  /**
   * Register a consumer, or replace its settings. Safe at each start of a service.
   *
   * The result holds the signing secret as `secret` once: when the consumer is new.
   */
  register(channel: string, consumer: string, settings: ConsumerSettings = {}): Promise<Resource> {
    const { events = [], ...fields } = settings;
    const mode = fields.url === undefined ? { mode: "pull" } : {};
    const said = { event_types: events, ...mode, ...fields };
    return this.json(jsonCall("PUT", pathOf("channels", channel, "consumers", consumer), said));
  }

  /** Change the given fields of a consumer. */
  updateConsumer(channel: string, consumer: string, fields: Settings): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer);
    return this.json(jsonCall("PATCH", path, fields));
  }

  /** A consumer. */
  consumer(channel: string, consumer: string): Promise<Resource> {
    return this.json({ method: "GET", path: pathOf("channels", channel, "consumers", consumer) });
  }

  /** The consumers of a channel; without `state` all but the retired ones. */
  consumers(channel: string, filter: { state?: string } = {}): AsyncGenerator<Resource, void> {
    return this.pages(pathOf("channels", channel, "consumers"), { ...filter });
  }

  /** Remove a consumer: what is queued for it is cancelled, its history stays. */
  async retireConsumer(channel: string, consumer: string): Promise<void> {
    const path = pathOf("channels", channel, "consumers", consumer);
    await this.transport.send({ method: "DELETE", path });
  }

  /** Hold deliveries back. When it returns, no request begins any more. */
  pauseConsumer(channel: string, consumer: string): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer, "pause");
    return this.json({ method: "POST", path });
  }

  /** Send what waits, after a pause or after the broker disabled the consumer. */
  resumeConsumer(channel: string, consumer: string): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer, "resume");
    return this.json({ method: "POST", path });
  }

  /** A new signing secret, as `secret`; the old ones sign for `overlap` seconds more. */
  rotateSecret(channel: string, consumer: string, overlap = 86_400): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer, "secrets");
    return this.json(jsonCall("POST", path, { overlap_s: overlap }, { isRepeatable: false }));
  }

  /** Send one signed sample now; the result says what came back. */
  testConsumer(channel: string, consumer: string): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer, "test");
    return this.json(jsonCall("POST", path, {}, { wait: TEST_WAIT_S }));
  }

  // -- Pull --------------------------------------------------------------------------------------

  /** Receive messages for a pull consumer, in one call. */
  async receiveBatch(
    channel: string,
    consumer: string,
    options: ReceiveOptions = {},
  ): Promise<Delivery[]> {
    const { max = 10, wait = 0, lease = 30, workerId, keys, resume, autoAck } = options;
    const said = given({
      max,
      wait_s: wait,
      lease_s: lease,
      worker_id: workerId,
      keys,
      resume: resume || undefined,
      auto_ack: autoAck || undefined,
    });
    const path = pathOf("channels", channel, "consumers", consumer, "receive");
    const found = await this.json(jsonCall("POST", path, said, { wait }));
    const messages: Resource[] = found.messages;
    try {
      return await Promise.all(messages.map((one) => this.deliveryOf(one)));
    } catch (error) {
      // Nobody has them: let them come again at once. With autoAck there are no leases.
      const leases = messages.map(({ lease }) => lease).filter(Boolean);
      if (leases.length) await this.release(leases).catch(() => undefined);
      throw error;
    }
  }

  /**
   * Iterate over the messages of a pull consumer, without end.
   *
   * Each call waits up to 20 seconds; with `wait: 0` the iterator ends when there is nothing to
   * receive. Settle each message before the next one: `ack`, `nack` or `release`.
   */
  async *receive(
    channel: string,
    consumer: string,
    options: ReceiveOptions = {},
  ): AsyncGenerator<Delivery, void> {
    const { wait = 20 } = options;
    for (let resume = options.resume; ; resume = false) {
      const batch = await this.receiveBatch(channel, consumer, { ...options, wait, resume });
      yield* batch;
      if (!batch.length && !wait) return;
    }
  }

  /** Acknowledge up to 100 messages by their leases: they are delivered. */
  ack(leases: Lease | Iterable<Lease>): Promise<Settled> {
    return this.settle("ack", leases);
  }

  /** Report failed attempts: the messages come again, or are dead. */
  nack(leases: Lease | Iterable<Lease>, options: NackOptions = {}): Promise<Settled> {
    const { delay, error, final } = options;
    const said = { delay_s: delay, error: error && lineOf(error), final: final || undefined };
    return this.settle("nack", leases, said);
  }

  /** Let leases end `lease` seconds from now. */
  extend(leases: Lease | Iterable<Lease>, lease: number): Promise<Settled> {
    return this.settle("extend", leases, { lease_s: lease });
  }

  /** Give messages back, to come again at once or after `delay` seconds, uncharged. */
  release(leases: Lease | Iterable<Lease>, options: ReleaseOptions = {}): Promise<Settled> {
    return this.settle("release", leases, { delay_s: options.delay });
  }

  // -- Deliveries --------------------------------------------------------------------------------

  /** A delivery with its attempts. */
  delivery(id: string): Promise<Resource> {
    return this.json({ method: "GET", path: pathOf("deliveries", id) });
  }

  /** The deliveries of a consumer, newest first. */
  deliveries(
    channel: string,
    consumer: string,
    filter: DeliveryFilter = {},
  ): AsyncGenerator<Resource, void> {
    const { eventType: event_type, ...params } = filter;
    const path = pathOf("channels", channel, "consumers", consumer, "deliveries");
    return this.pages(path, { ...params, event_type });
  }

  /** The dead deliveries of a consumer, newest first. */
  deadLetters(
    channel: string,
    consumer: string,
    filter: Omit<DeliveryFilter, "state"> = {},
  ): AsyncGenerator<Resource, void> {
    const { eventType: event_type, ...params } = filter;
    const path = pathOf("channels", channel, "consumers", consumer, "dead-letters");
    return this.pages(path, { ...params, event_type });
  }

  /** Send a finished delivery again, now and with all its attempts. */
  replayDelivery(id: string, options: { reason?: string } = {}): Promise<Resource> {
    const path = pathOf("deliveries", id, "replay");
    return this.json(jsonCall("POST", path, given(options), { isRepeatable: false }));
  }

  /** Take a queued delivery back. */
  cancelDelivery(id: string, options: { reason?: string } = {}): Promise<Resource> {
    const path = pathOf("deliveries", id, "cancel");
    return this.json(jsonCall("POST", path, given(options), { isRepeatable: false }));
  }

  // -- Everything else ---------------------------------------------------------------------------

  /** The schedules of a channel. */
  schedules(channel: string): Schedules {
    return new Schedules(this, channel);
  }

  /**
   * Any other call of the REST API, with the same repeats and errors.
   *
   * `path` is below `/api/v1`, as docs/api.md writes it. Returns the JSON of the answer, null where
   * there is none.
   */
  async request(method: string, path: string, options: RequestOptions = {}): Promise<Resource> {
    const { json, isRepeatable = method.toUpperCase() !== "POST", ...rest } = options;
    const call =
      json === undefined
        ? { ...rest, method, path, isRepeatable }
        : jsonCall(method, path, json, { ...rest, isRepeatable });
    return this.json(call);
  }

  /** The items of a list of the API, read page by page. */
  async *pages(
    path: string,
    params: Record<string, Parameter> = {},
  ): AsyncGenerator<Resource, void> {
    let cursor: string | undefined;
    do {
      const page = await this.json({ method: "GET", path, params: { ...params, cursor } });
      yield* page.items;
      cursor = page.next ?? undefined;
    } while (cursor !== undefined);
  }

  private async deliveryOf(one: Resource): Promise<Delivery> {
    const received = receivedOf(one);
    // A large body does not come along.
    if (one.body_url) received.body = await this.body(received.id);
    return new Delivery(this, received);
  }

  private async json(call: Call): Promise<Resource> {
    const { body } = await this.transport.send(call);
    return JSON.parse(body.toString() || "null");
  }

  private async settle(
    what: string,
    leases: Lease | Iterable<Lease>,
    fields: Settings = {},
  ): Promise<Settled> {
    const listed =
      typeof leases === "string" || !(Symbol.iterator in leases) ? [leases] : [...leases];
    const names = listed.map((one) => (typeof one === "string" ? one : one.lease));
    if (names.length > MAX_LEASES) {
      throw new RangeError(`${names.length} leases in one call; ${MAX_LEASES} are allowed.`);
    }
    const said = { leases: names, ...given(fields) };
    return settledOf(await this.json(jsonCall("POST", pathOf("leases", what), said)));
  }
}

/** An error's text as the broker takes it: 300 characters, no control characters or half pairs. */
function lineOf(error: string): string {
  return [...error.replace(/[\p{Cc}\p{Cs}]+/gu, " ")].slice(0, MAX_ERROR).join("");
}

function ifMatch(version: number | undefined): Partial<Call> {
  if (version === undefined) return {};
  // The repeat of a write that had its effect would meet the version that it made.
  return { headers: { "If-Match": `"${version}"` }, isRepeatable: false };
}
