/** Job schedulers as schedules of the broker, which publishes each occurrence by itself. */

import type { JobJson, JobsOptions, RepeatableOptions } from "bullmq";
import { NotFound, type Resource } from "hookstation-client";

import { postedOf } from "./job.js";
import { eventTypeOf, priorityOf, slugOf } from "./names.js";
import type { BrokerQueue } from "./queue.js";

/** What a schedule's body says beside the job: how BullMQ was asked. */
interface Template {
  scheduler: string;
  template: { data: string; opts: JobsOptions };
}

/** The job schedulers of a queue. */
export class Schedulers {
  constructor(private readonly queue: BrokerQueue) {}

  /** Create or replace one; returns the id of its first job, and the milliseconds until then. */
  async put(
    id: string,
    nextMillis: number,
    data: string,
    templateOpts: JobsOptions,
    repeat: RepeatableOptions,
    delayedJobOpts: JobsOptions,
  ): Promise<[string, number]> {
    const now = Date.now();
    const { delay: _, jobId: __, ...opts } = delayedJobOpts as Record<string, unknown>;
    const name = repeat.name ?? id;
    const job = { name, data, opts, timestamp: now, repeatJobKey: id } as unknown as JobJson;
    const posted = { ...postedOf(job, {}), scheduler: id, template: { data, opts: templateOpts } };
    const startAt = this.startOf(repeat, nextMillis, now);
    await this.queue.hooks.schedules(this.queue.channel).put(slugOf(id), {
      body: posted,
      ...(repeat.pattern
        ? { cron: repeat.pattern, timezone: repeat.tz ?? "UTC" }
        : { every: Number(repeat.every) / 1000 }),
      ...(startAt ? { start_at: new Date(startAt).toISOString() } : {}),
      ...(repeat.endDate ? { end_at: new Date(repeat.endDate).toISOString() } : {}),
      ...(repeat.limit ? { limit: repeat.limit } : {}),
      event_type: eventTypeOf(name),
      priority: priorityOf(templateOpts.priority ?? 0),
      overlap: "skip_if_undelivered",
    });
    const [first] = (await this.schedule(id))?.next ?? [];
    const due = first ? Date.parse(first) : (startAt ?? now);
    return [`repeat:${id}:${due}`, Math.max(0, due - Date.now())];
  }

  /** An interval begins at once, or at its offset; a pattern by itself. */
  private startOf(repeat: RepeatableOptions, nextMillis: number, now: number): number | undefined {
    if (repeat.pattern) return repeat.startDate;
    const every = Number(repeat.every);
    if (repeat.startDate && repeat.startDate > now) return repeat.startDate;
    if (!repeat.offset) return Math.max(nextMillis || 0, now);
    const slot = Math.floor(now / every) * every + repeat.offset;
    return slot > now ? slot : slot + every;
  }

  /** Remove one: 0, or 1 if there was none. */
  async remove(id: string): Promise<number> {
    await this.queue.ready();
    try {
      await this.queue.hooks.schedules(this.queue.channel).delete(slugOf(id));
      return 0;
    } catch (error) {
      if (error instanceof NotFound) return 1;
      throw error;
    }
  }

  async removeAll(): Promise<void> {
    for (const { id } of await this.all()) await this.remove(id);
  }

  /** The fields of one, flat, and when it is due next. */
  async read(id: string): Promise<[string[] | null, string | null]> {
    const schedule = await this.schedule(id);
    if (!schedule) return [null, null];
    const fields = Object.entries(fieldsOf(schedule)).flat();
    return [fields, nextOf(schedule)];
  }

  /** The fields of one; empty if there is none. */
  async data(id: string): Promise<Record<string, string>> {
    const schedule = await this.schedule(id);
    return schedule ? fieldsOf(schedule) : {};
  }

  /** Ids and due times in turn, by due time. */
  async range(start: number, end: number, asc: boolean): Promise<string[]> {
    const all = (await this.all()).sort((one, other) => one.next - other.next);
    if (!asc) all.reverse();
    const from = start < 0 ? all.length + start : start;
    const to = end < 0 ? all.length + end : end;
    return all.slice(Math.max(0, from), to + 1).flatMap(({ id, next }) => [id, String(next)]);
  }

  async count(): Promise<number> {
    return (await this.all()).length;
  }

  private async all(): Promise<{ id: string; next: number }[]> {
    await this.queue.ready();
    const found: { id: string; next: number }[] = [];
    const schedules = this.queue.hooks.schedules(this.queue.channel);
    for await (const { name } of schedules.list()) {
      const schedule = await schedules.get(name).catch(ignoreMissing);
      const template = schedule && templateOf(schedule);
      if (!template) continue;
      found.push({ id: template.scheduler, next: Number(nextOf(schedule)) });
    }
    return found;
  }

  private async schedule(id: string): Promise<Resource | undefined> {
    await this.queue.ready();
    return this.queue.hooks.schedules(this.queue.channel).get(slugOf(id)).catch(ignoreMissing);
  }
}

function ignoreMissing(error: unknown): undefined {
  if (error instanceof NotFound) return undefined;
  throw error;
}

/** What BullMQ had asked for; undefined for a schedule that somebody else made. */
function templateOf({ body }: Resource): Template | undefined {
  try {
    const read = JSON.parse(body) as Template;
    return typeof read?.scheduler === "string" ? read : undefined;
  } catch {
    return undefined;
  }
}

function nextOf({ next }: Resource): string | null {
  return next?.[0] ? String(Date.parse(next[0])) : null;
}

function fieldsOf(schedule: Resource): Record<string, string> {
  const read = templateOf(schedule);
  if (!read) return {};
  const posted = JSON.parse(schedule.body) as { name: string; opts: { repeat?: Resource } };
  const { offset } = posted.opts.repeat ?? {};
  const { data, opts } = read.template;
  const said = {
    name: posted.name,
    ic: String(schedule.fired_count + 1),
    limit: schedule.limit,
    startDate: schedule.cron && schedule.start_at && Date.parse(schedule.start_at),
    endDate: schedule.end_at && Date.parse(schedule.end_at),
    tz: schedule.cron && posted.opts.repeat?.tz,
    pattern: schedule.cron,
    every: schedule.every_ms,
    offset,
    data: data === "{}" ? undefined : data,
    opts: Object.keys(opts).length ? JSON.stringify(opts) : undefined,
  };
  const kept = Object.entries(said).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return Object.fromEntries(kept.map(([name, value]) => [name, String(value)]));
}
