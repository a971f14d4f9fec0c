/**
 * Handle each message once: `once`, and stores of handled message ids.
 *
 * Delivery is at least once, so a message may arrive again with the same id. By default a store
 * keeps ids for a week, which is longer than the broker retries.
 */

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

import { Retry } from "./errors.js";

const KEEP_S = 7 * 86_400;
const CLAIM_S = 120;
/** The process id, the host, and a random mark, because process ids are reused. */
const OWNER = `${process.pid}:${hostname()}:${randomUUID()}`;

/** The state of a key in a store. */
export type Claim =
  /** The caller has the claim: handle the message, then call `done` or `forget`. */
  | { state: "new" }
  /** It was handled before. */
  | { state: "done" }
  /** Another call is handling it, for at most `seconds` more. */
  | { state: "running"; seconds: number };

/** Stores which messages were handled. Implement your own to store it with the effect. */
export interface Store {
  /** Claim a key. If two calls happen at the same time, only one gets `new`. */
  claim(key: string): Claim | Promise<Claim>;
  /** Store the key as handled. */
  done(key: string): void | Promise<void>;
  /** Remove the claim, because the handler failed. */
  forget(key: string): void | Promise<void>;
}

/** Options of a store. */
export interface StoreOptions {
  /** Seconds for which it keeps handled messages; by default a week. */
  keep?: number;
  /**
   * Seconds until another process may handle a message whose process died; by default 120. Must be
   * longer than a handler runs: after this time a repeat runs at the same time.
   */
  claim?: number;
}

/**
 * Return a handler that is called once for each message in `store`.
 *
 * For handlers of a worker; `Hooks` does the same with its option `store`. A repeat is acknowledged
 * without a call. `name` distinguishes handlers that share a store.
 */
export function once<T extends { readonly id: string }>(
  store: Store,
  name: string,
  handler: (message: T) => unknown,
): (message: T) => Promise<void> {
  return (message) => onceFor(store, `${name}:${message.id}`, () => handler(message));
}

/** Call `handle` unless the store has the key; throw `Retry` while another call handles it. */
export async function onceFor(
  store: Store,
  key: string,
  handle: () => unknown,
): Promise<void> {
  const claim = await store.claim(key);
  if (claim.state === "done") return;
  if (claim.state === "running") {
    // A retry before the claim ends would only use up attempts.
    const after = Math.max(1, claim.seconds);
    throw new Retry({ after, reason: "the same message is being handled" });
  }
  try {
    await handle();
  } catch (error) {
    await store.forget(key);
    throw error;
  }
  await store.done(key);
}

/** Stores handled messages in memory: for tests, or a single process that may lose them. */
export class MemoryStore implements Store {
  private readonly keep: number;
  private readonly claimFor: number;
  private readonly entries = new Map<string, { isDone: boolean; until: number }>();

  constructor({ keep = KEEP_S, claim = CLAIM_S }: StoreOptions = {}) {
    this.keep = keep;
    this.claimFor = claim;
  }

  /** Claim a key. */
  claim(key: string): Claim {
    const now = seconds();
    // The oldest come first: setting an entry moves it to the end.
    for (const [old, { until }] of [...this.entries].slice(0, 100)) {
      if (until < now) this.entries.delete(old);
    }
    const found = this.entries.get(key);
    if (found !== undefined && found.until >= now) {
      return found.isDone ? { state: "done" } : { state: "running", seconds: found.until - now };
    }
    this.set(key, false, now + this.claimFor);
    return { state: "new" };
  }

  /** Store the key as handled. */
  done(key: string): void {
    this.set(key, true, seconds() + this.keep);
  }

  /** Remove the claim. */
  forget(key: string): void {
    if (!this.entries.get(key)?.isDone) this.entries.delete(key);
  }

  private set(key: string, isDone: boolean, until: number): void {
    this.entries.delete(key);
    this.entries.set(key, { isDone, until });
  }
}

/** The interface of databases of `node:sqlite`, better-sqlite3 and libsql. */
export interface SQLiteDatabase {
  /** Run statements without parameters. */
  exec(sql: string): unknown;
  /** Prepare a statement with `?` as parameters. */
  prepare(sql: string): {
    run(...values: (string | number)[]): { changes: number | bigint };
    get(...values: (string | number)[]): unknown;
  };
}

/**
 * Stores handled messages in an SQLite database, which the processes of one host share.
 *
 * `database` is a connection of `node:sqlite`, better-sqlite3 or libsql. When a process dies, its
 * claims end at once.
 */
export class SQLiteStore implements Store {
  private readonly keep: number;
  private readonly claimFor: number;

  constructor(
    private readonly database: SQLiteDatabase,
    { keep = KEEP_S, claim = CLAIM_S }: StoreOptions = {},
  ) {
    this.keep = keep;
    this.claimFor = claim;
    database.exec(
      "CREATE TABLE IF NOT EXISTS hookstation_handled (key TEXT PRIMARY KEY," +
        " owner TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID",
    );
    database.exec(
      "CREATE INDEX IF NOT EXISTS hookstation_handled_until ON hookstation_handled (until)",
    );
  }

  /** Claim a key. */
  claim(key: string): Claim {
    const now = seconds();
    const until = now + this.claimFor;
    this.run("DELETE FROM hookstation_handled WHERE until < ?", now);
    const insert = "INSERT OR IGNORE INTO hookstation_handled VALUES (?, ?, ?)";
    if (this.run(insert, key, OWNER, until)) return { state: "new" };
    const found = this.database
      .prepare("SELECT owner, until FROM hookstation_handled WHERE key = ?")
      .get(key) as { owner: string; until: number } | undefined;
    if (found === undefined) return { state: "running", seconds: 1 };
    if (!found.owner) return { state: "done" };
    if (!this.isAlive(found.owner)) {
      // Only if the dead process still has the claim: two processes may find it at the same time.
      const take = "UPDATE hookstation_handled SET owner = ?, until = ? WHERE key = ? AND owner = ?";
      if (this.run(take, OWNER, until, key, found.owner)) return { state: "new" };
    }
    return { state: "running", seconds: found.until - now };
  }

  /** Store the key as handled. */
  done(key: string): void {
    const sql = "REPLACE INTO hookstation_handled VALUES (?, '', ?)";
    this.run(sql, key, seconds() + this.keep);
  }

  /** Remove the claim. */
  forget(key: string): void {
    // Only its own claim: after the claim ends, another process may have claimed or handled it.
    this.run("DELETE FROM hookstation_handled WHERE key = ? AND owner = ?", key, OWNER);
  }

  private run(sql: string, ...values: (string | number)[]): number {
    return Number(this.database.prepare(sql).run(...values).changes);
  }

  /** Return whether the process of a claim still exists; true if that is unknown. */
  private isAlive(owner: string): boolean {
    const [id, host] = owner.split(":");
    if (host !== hostname()) return true;
    const pid = Number(id);
    if (pid === process.pid) return owner === OWNER;
    try {
      process.kill(pid, 0);
      return true;
    } catch (error) {
      return (error as NodeJS.ErrnoException).code !== "ESRCH";
    }
  }
}

function seconds(): number {
  return Date.now() / 1000;
}
