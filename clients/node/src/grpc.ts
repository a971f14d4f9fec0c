/**
 * The call `Receive` of the broker's gRPC server. The only module that uses the gRPC libraries,
 * which need not be installed.
 */

import { join } from "node:path";

import type * as Grpc from "@grpc/grpc-js";
import type * as ProtoLoader from "@grpc/proto-loader";

import { NO_RESPONSE } from "./calls.js";
import { ConnectionFailed, errorOf, type HookstationError } from "./errors.js";

const SERVICE = "hookstation.v1.Hookstation";
const PROBLEM_KEY = "hookstation-problem-bin";
const OPTIONS = {
  // Bodies may be as large as the broker allows.
  "grpc.max_receive_message_length": -1,
  "grpc.max_send_message_length": -1,
  // Notice a broker whose host is gone.
  "grpc.keepalive_time_ms": 30_000,
  "grpc.keepalive_timeout_ms": 10_000,
  // Shorter than a worker waits before it opens a stream again.
  "grpc.max_reconnect_backoff_ms": 5_000,
  "grpc.client_idle_timeout_ms": 60_000,
  "grpc.enable_channelz": 0,
  // A call that has begun cannot be repeated; its messages would only be kept in memory.
  "grpc.enable_retries": 0,
};
/** HTTP statuses of refusals that do not come from the broker itself, such as a proxy's. */
const STATUSES: Record<string, number> = {
  UNAUTHENTICATED: 401,
  PERMISSION_DENIED: 403,
  NOT_FOUND: 404,
  INVALID_ARGUMENT: 422,
  RESOURCE_EXHAUSTED: 429,
};

/** Fields of `hookstation.proto`, which describes them. */
export interface Subscription {
  channel: string;
  consumer: string;
  leaseS?: number;
  workerId?: string;
  sticky?: boolean;
  resume?: boolean;
  autoAck?: boolean;
}

/** What settles leases. */
export type Action = "ACK" | "NACK" | "RELEASE" | "EXTEND";

/** Fields of `hookstation.proto`. */
export interface Settlement {
  id: number;
  action: Action;
  leases: string[];
  delayS?: number;
  error?: string;
  final?: boolean;
  leaseS?: number;
}

/** Fields of `hookstation.proto`. */
export interface ReceiveRequest {
  subscription?: Subscription;
  credits?: number;
  settlements?: Settlement[];
}

/** Fields of `google.protobuf.Timestamp`. */
export interface Timestamp {
  seconds: number;
  nanos: number;
}

/** Fields of `hookstation.proto`. */
export interface StreamedDelivery {
  id: string;
  deliveryId: string;
  lease: string;
  leaseExpiresAt: Timestamp | null;
  attempt: number;
  maxAttempts: number;
  eventType: string;
  priority: number;
  orderingKey: string;
  replay: boolean;
  acceptedAt: Timestamp | null;
  contentType: string;
  headers: Record<string, string>;
  body: Buffer;
  bodyUrl: string;
}

/** Fields of `hookstation.proto`. */
export interface ReceiveResponse {
  deliveries: StreamedDelivery[];
  results: { id: number; failed: { lease: string; error: string }[] }[];
  stopping: boolean;
}

interface Problem {
  status: number;
  code: string;
  detail: string;
  field: string;
  retryAfterS: number;
}

/** A call that has begun. */
export interface Call {
  /** Send a request. Returns false if the next one should wait for `onDrain`. */
  write(request: ReceiveRequest): boolean;
  /** Close this side; the broker ends the call when it has settled all. */
  end(): void;
  /** End the call at once. */
  cancel(): void;
}

/** What a call reports. */
export interface Events {
  /** Called with each response. */
  onResponse(response: ReceiveResponse): void;
  /** Called when requests can be written again. */
  onDrain(): void;
  /** Called once, when all responses are read; with the error if the call failed. */
  onEnd(error?: HookstationError): void;
}

interface Library {
  grpc: typeof Grpc;
  definitions: ProtoLoader.PackageDefinition;
}

let library: Library | undefined;
/**
 * The connection of each address. It does not keep the process running, and is closed when it has
 * been idle. A client of its own for each call, closed while it waits to connect again, would leave
 * a connection behind.
 */
const clients = new Map<string, Grpc.Client>();

/** Load the gRPC libraries. Throws if they are not installed. */
export function loadLibrary(): Library {
  if (library !== undefined) return library;
  try {
    // Not `import`: bundlers accept only that a `require` within `try` finds nothing.
    const grpc = require("@grpc/grpc-js") as typeof Grpc;
    const loader = require("@grpc/proto-loader") as typeof ProtoLoader;
    // The build copies it here from the broker's sources.
    const path = join(__dirname, "..", "hookstation.proto");
    const definitions = loader.loadSync(path, { longs: Number, enums: String, defaults: true });
    library = { grpc, definitions };
    return library;
  } catch (cause) {
    const [said] = String(cause).split("\n");
    throw new Error(`Install @grpc/grpc-js and @grpc/proto-loader: ${said}`, { cause });
  }
}

/** Return `host:port` of `grpc://host:port` or, for TLS, `grpcs://host:port`. Throws for others. */
export function targetOf(url: string): { target: string; isSecure: boolean } {
  const { protocol, host, pathname, search } = parsed(url);
  if (!/^grpcs?:$/.test(protocol) || !host || pathname.replace("/", "") || search) {
    throw new Error(`${url} is not grpc://host:port or grpcs://host:port.`);
  }
  return { target: host, isSecure: protocol === "grpcs:" };
}

/** Begin to receive. Throws if the libraries are not installed. */
export function receive(url: string, key: string, first: ReceiveRequest, events: Events): Call {
  const { grpc, definitions } = loadLibrary();
  const { Receive } = definitions[SERVICE] as ProtoLoader.ServiceDefinition;
  const { path, requestSerialize, responseDeserialize } = Receive!;
  const metadata = new grpc.Metadata();
  metadata.set("authorization", `Bearer ${key}`);
  const call = clientOf(url).makeBidiStreamRequest<object, object>(
    path,
    requestSerialize,
    responseDeserialize,
    metadata,
  );
  let status: Grpc.StatusObject | undefined;
  let isRead = false;
  const endIfDone = (): void => {
    if (status === undefined || !isRead) return;
    events.onEnd(status.code === grpc.status.OK ? undefined : errorOfStatus(status));
  };
  call.on("data", (response: ReceiveResponse) => events.onResponse(response));
  call.on("drain", () => events.onDrain());
  // "status" says the same.
  call.on("error", () => undefined);
  call.on("status", (said: Grpc.StatusObject) => {
    status = said;
    endIfDone();
  });
  call.on("end", () => {
    isRead = true;
    endIfDone();
  });
  call.write(first);
  return {
    write: (request) => call.write(request),
    end: () => void call.end(),
    cancel: () => call.cancel(),
  };
}

function clientOf(url: string): Grpc.Client {
  const { Client, credentials } = loadLibrary().grpc;
  let client = clients.get(url);
  if (client === undefined) {
    const { target, isSecure } = targetOf(url);
    const secrets = isSecure ? credentials.createSsl() : credentials.createInsecure();
    client = new Client(target, secrets, OPTIONS);
    clients.set(url, client);
  }
  return client;
}

/** Return the error of a failed call: the broker's problem, or the connection's. */
export function errorOfStatus({ code, details, metadata }: Grpc.StatusObject): HookstationError {
  const { grpc, definitions } = loadLibrary();
  const [content] = metadata.get(PROBLEM_KEY);
  if (content instanceof Buffer) {
    const type = definitions["hookstation.v1.Problem"] as ProtoLoader.MessageTypeDefinition<
      object,
      Problem
    >;
    try {
      return errorOfProblem(type.deserialize(content));
    } catch {
      // It is not the broker's.
    }
  }
  const name = grpc.status[code] ?? String(code);
  const detail = `gRPC: ${name}: ${details}`;
  const status = STATUSES[name];
  if (status === undefined) return new ConnectionFailed(detail, { code: NO_RESPONSE });
  return errorOf(status, null, JSON.stringify({ detail }));
}

function errorOfProblem({ status, code, detail, field, retryAfterS }: Problem): HookstationError {
  const said = { code, detail, field: field || undefined };
  return errorOf(status, retryAfterS ? String(retryAfterS) : null, JSON.stringify(said));
}

function parsed(url: string): { protocol: string; host: string; pathname: string; search: string } {
  try {
    return new URL(url);
  } catch {
    return { protocol: "", host: "", pathname: "", search: "" };
  }
}
