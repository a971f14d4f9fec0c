/** The schedules of one channel. */

import { given, milliseconds, pathOf } from "./calls.js";
import type { Hookstation } from "./client.js";
import { bodyFields, type Message, messageOf, type Resource, type Settings } from "./models.js";

/** Fields of a schedule: those of docs/api.md, "Schedules", and two in the client's words. */
export interface ScheduleSettings extends Settings {
  /** What is published: as it is when it is a string or bytes, anything else as JSON. */
  body?: unknown;
  /** When, as `0 9 * * 1-5`; or `every`. */
  cron?: string;
  /** Seconds, the API's `every_ms`. */
  every?: number;
}

/** Messages that are published again and again. */
export class Schedules {
  constructor(
    private readonly client: Hookstation,
    readonly channel: string,
  ) {}

  /** Create a schedule, or replace it. The same call twice changes nothing. */
  put(name: string, settings: ScheduleSettings): Promise<Resource> {
    return this.client.request("PUT", this.path(name), { json: fieldsOf(settings) });
  }

  /** Change the given fields of a schedule. */
  update(name: string, settings: ScheduleSettings): Promise<Resource> {
    return this.client.request("PATCH", this.path(name), { json: fieldsOf(settings) });
  }

  /** A schedule, with its next occurrences and the results of the last ones. */
  get(name: string): Promise<Resource> {
    return this.client.request("GET", this.path(name));
  }

  /** The schedules of the channel, newest first, without their bodies. */
  list(filter: { state?: string } = {}): AsyncGenerator<Resource, void> {
    return this.client.pages(this.path(), { ...filter });
  }

  /** Delete a schedule; its messages stay. */
  async delete(name: string): Promise<void> {
    await this.client.request("DELETE", this.path(name));
  }

  /** Publish nothing until `resume`. */
  pause(name: string): Promise<Resource> {
    return this.client.request("POST", this.path(name, "pause"), { isRepeatable: true });
  }

  /** Go on; what was due meanwhile is not published. */
  resume(name: string): Promise<Resource> {
    return this.client.request("POST", this.path(name, "resume"), { isRepeatable: true });
  }

  /** Publish the schedule's message once more, now. */
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
