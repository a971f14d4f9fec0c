/** What happened to a queue, for `QueueEvents`: a pull consumer of its own on the events' channel. */

import { randomUUID } from "node:crypto";

import type { StreamReadRaw } from "bullmq";
import { type Hookstation, NotFound } from "hookstation-client";

import { pause } from "./connection.js";
import { isPassing, NotSupported } from "./errors.js";
import type { BrokerQueue, Event } from "./queue.js";

const MAX_WAIT_S = 20;
const MAX_EVENTS = 100;
const AFTER_REFUSAL_MS = 1_000;
/** BullMQ's name for "from now on". */
const NOW = "$";

/** The events of a queue since this process asked first. */
export class Feed {
  private readonly abort = new AbortController();
  private readonly poller: Hookstation;
  private hasRead = false;
  private opened: Promise<string> | undefined;

  constructor(private readonly queue: BrokerQueue) {
    this.poller = queue.connection.poller(() => this.abort.signal);
  }

  /** Wait up to so many milliseconds for events. Throws `NotSupported` for past ones. */
  async read(id: string, milliseconds: number): Promise<StreamReadRaw> {
    if (!this.hasRead && id !== NOW) {
      throw new NotSupported("lastEventId", "events are given from the start of QueueEvents on.");
    }
    this.hasRead = true;
    const consumer = await this.open();
    if (this.abort.signal.aborted) return null;
    const wait = Math.min(milliseconds / 1000, MAX_WAIT_S);
    const options = { max: MAX_EVENTS, wait, autoAck: true };
    try {
      const { events } = this.queue;
      const found = await this.poller.receiveBatch(events, consumer, options);
      if (!found.length) return null;
      // The order of acceptance: the broker's ids rise.
      found.sort((one, other) => (one.id < other.id ? -1 : 1));
      const entries = found.flatMap((delivery) => {
        const listed = (delivery.json().events ?? []) as Event[];
        return listed.map((event) => [delivery.id, fieldsOf(event)] as [string, string[]]);
      });
      return entries.length ? [[events, entries]] : null;
    } catch (error) {
      if (this.abort.signal.aborted) return null;
      if (!isPassing(error)) throw error;
      await pause(AFTER_REFUSAL_MS, this.abort.signal);
      return null;
    }
  }

  /** Register the consumer, from which on events are kept for it. */
  open(): Promise<string> {
    this.opened ??= (async () => {
      await this.queue.ready();
      const consumer = `listener-${randomUUID()}`;
      await this.queue.hooks.register(this.queue.events, consumer);
      return consumer;
    })();
    return this.opened;
  }

  /** Break off the wait. */
  interrupt(): void {
    this.abort.abort();
  }

  async close(): Promise<void> {
    this.interrupt();
    const consumer = await this.opened?.catch(() => undefined);
    if (consumer === undefined) return;
    try {
      await this.queue.hooks.retireConsumer(this.queue.events, consumer);
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
    }
  }
}

function fieldsOf(event: Event): string[] {
  return Object.entries(event).flatMap(([name, value]) => [name, String(value)]);
}
