/** The schedules of one channel. */

import { given, milliseconds, pathOf } from "./calls.js";
import type { Hookstation } from "./client.js";
import { bodyFields, type Message, messageOf, type Resource, type Settings } from "./models.js";

/** Fields of a schedule: those of docs/api.md, "Schedules", and these. */
export interface ScheduleSettings extends Settings {
  /** The body of each message: strings and bytes as they are, anything else as JSON. */
  body?: unknown;
  /** A cron expression such as `0 9 * * 1-5`; or set `every`. */
  cron?: string;
  /** The interval in seconds (`every_ms` of the API). */
  every?: number;
}

/** The schedules of one channel. */
export class Schedules {
  constructor(
    private readonly client: Hookstation,
    readonly channel: string,
  ) {}

  /** Create or replace a schedule. Idempotent. */
  put(name: string, settings: ScheduleSettings): Promise<Resource> {
    return this.client.request("PUT", this.path(name), { json: fieldsOf(settings) });
  }

  /** Change the given fields of a schedule. */
  update(name: string, settings: ScheduleSettings): Promise<Resource> {
    return this.client.request("PATCH", this.path(name), { json: fieldsOf(settings) });
  }

  /** Return a schedule, with its next occurrences and the results of the last ones. */
  get(name: string): Promise<Resource> {
    return this.client.request("GET", this.path(name));
  }

  /** List the schedules of the channel, newest first, without their bodies. */
  list(filter: { state?: string } = {}): AsyncGenerator<Resource, void> {
    return this.client.pages(this.path(), { ...filter });
  }

  /** Delete a schedule. Its messages are kept. */
  async delete(name: string): Promise<void> {
    await this.client.request("DELETE", this.path(name));
  }

  /** Pause a schedule: publish nothing until `resume`. */
  pause(name: string): Promise<Resource> {
    return this.client.request("POST", this.path(name, "pause"), { isRepeatable: true });
  }

  /** Resume a schedule. Occurrences during the pause are not published. */
  resume(name: string): Promise<Resource> {
    return this.client.request("POST", this.path(name, "resume"), { isRepeatable: true });
  }

  /** Publish the schedule's message now, in addition to its occurrences. */
  async run(name: string): Promise<Message> {
    return messageOf(await this.client.request("POST", this.path(name, "run")));
  }

  private path(...parts: string[]): string {
    return pathOf("channels", this.channel, "schedules", ...parts);
  }
}

function fieldsOf({ body, every, ...said }: ScheduleSettings): Settings {
  const kind = said.content_type as string | undefined;
  return given({
    ...said,
    ...(body === undefined ? {} : bodyFields(body, kind)),
    every_ms: milliseconds(every) ?? said.every_ms,
  });
}
