/**
 * Handle each message once: `once`, and the stores that remember what was handled.
 *
 * Delivery is at least once, so a message may arrive again with the same id. A store remembers ids
 * for a week unless told otherwise: longer than the broker tries.
 */

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

import { Retry } from "./errors.js";

const KEEP_S = 7 * 86_400;
const CLAIM_S = 120;
/** This process: its id, its host, and a mark that a later process of the same id does not have. */
const OWNER = `${process.pid}:${hostname()}:${randomUUID()}`;

/** What a store knows about a key. */
export type Claim =
  /** It is yours now: handle the message, then call `done` or `forget`. */
  | { state: "new" }
  /** It was handled before. */
  | { state: "done" }
  /** Another call handles it right now, for `seconds` more at most. */
  | { state: "running"; seconds: number };

/** Remembers which messages were handled. Write your own where the effect is stored. */
export interface Store {
  /** Claim a key. Of two calls at the same time one gets `new`. */
  claim(key: string): Claim | Promise<Claim>;
  /** Remember the key as handled. */
  done(key: string): void | Promise<void>;
  /** Give the claim up: the handler failed. */
  forget(key: string): void | Promise<void>;
}

/** How long a store remembers. */
export interface StoreOptions {
  /** Seconds for which it remembers what was handled; a week unless given. */
  keep?: number;
  /**
   * Seconds after which a message whose process died is handled by another one; 120 unless given.
   * Longer than a handler takes: after that time a repeat would run beside it.
   */
  claim?: number;
}

/**
 * A handler that is called once for each message, as far as `store` remembers.
 *
 * For handlers of a worker; `Hooks` does the same with its option `store`. A repeat is acknowledged
 * without a call. `name` tells the handlers apart that share a store.
 */
export function once<T extends { readonly id: string }>(
  store: Store,
  name: string,
  handler: (message: T) => unknown,
): (message: T) => Promise<void> {
  return (message) => onceFor(store, `${name}:${message.id}`, () => handler(message));
}

/** Call `handle` unless the store knows the key; throws `Retry` while another call does. */
export async function onceFor(
  store: Store,
  key: string,
  handle: () => unknown,
): Promise<void> {
  const claim = await store.claim(key);
  if (claim.state === "done") return;
  if (claim.state === "running") {
    // A repeat before the claim ends would use up attempts for nothing.
    const after = Math.max(1, claim.seconds);
    throw new Retry({ after, reason: "the same message is being handled right now" });
  }
  try {
    await handle();
  } catch (error) {
    await store.forget(key);
    throw error;
  }
  await store.done(key);
}

/** Remembers in this process alone: for tests, and for one process that may forget. */
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
    // The oldest stand first, as an entry is put at the end each time that it is set.
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

  /** Remember the key as handled. */
  done(key: string): void {
    this.set(key, true, seconds() + this.keep);
  }

  /** Give the claim up. */
  forget(key: string): void {
    if (!this.entries.get(key)?.isDone) this.entries.delete(key);
  }

  private set(key: string, isDone: boolean, until: number): void {
    this.entries.delete(key);
    this.entries.set(key, { isDone, until });
  }
}

/** A database as `node:sqlite`, better-sqlite3 and libsql have it. */
export interface SQLiteDatabase {
  /** Run statements without values. */
  exec(sql: string): unknown;
  /** A statement with `?` for its values. */
  prepare(sql: string): {
    run(...values: (string | number)[]): { changes: number | bigint };
    get(...values: (string | number)[]): unknown;
  };
}

/**
 * Remembers in an SQLite database, which the processes of one host share.
 *
 * `database` is a connection of `node:sqlite`, better-sqlite3 or libsql. The claim of a process
 * that died is free at once.
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
      // Only where the dead process still holds it: two may have found it at the same time.
      const take = "UPDATE hookstation_handled SET owner = ?, until = ? WHERE key = ? AND owner = ?";
      if (this.run(take, OWNER, until, key, found.owner)) return { state: "new" };
    }
    return { state: "running", seconds: found.until - now };
  }

  /** Remember the key as handled. */
  done(key: string): void {
    const sql = "REPLACE INTO hookstation_handled VALUES (?, '', ?)";
    this.run(sql, key, seconds() + this.keep);
  }

  /** Give the claim up. */
  forget(key: string): void {
    // Only one's own: after a lapse another process may have claimed or handled it.
    this.run("DELETE FROM hookstation_handled WHERE key = ? AND owner = ?", key, OWNER);
  }

  private run(sql: string, ...values: (string | number)[]): number {
    return Number(this.database.prepare(sql).run(...values).changes);
  }

  /** Whether the process of a claim still exists; true where that is not known. */
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
