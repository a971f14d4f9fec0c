/** Parents and children: a parent waits in the broker's future until its children have ended. */

import { ErrorCode, type JobJson } from "bullmq";
import { Conflict, NotFound } from "hookstation-client";

import { jobError } from "./errors.js";
import { type Held, parentOf, type Posted, readPosted, type State } from "./job.js";
import { PREFIX } from "./names.js";
import { type BrokerQueue, type Event, type Found, type Listed, PARKED_MS } from "./queue.js";

/** The key of a job: its queue's qualified name, and its id. */
export function keyOf(prefix: string, queue: string, id: string): string {
  return `${qualified(prefix, queue)}:${id}`;
}

/** The qualified name of a queue. A prefix may have colons, which separate the parts of a key. */
export function qualified(prefix: string, queue: string): string {
  return `${prefix.replace(/:/g, "%3A")}:${queue}`;
}

/** The prefix in a qualified name, as the program gave it. */
export function prefixOf(prefix: string): string {
  return prefix.replace(/%3A/g, ":") || PREFIX;
}

/** The parts of a key. Names of queues have no colons, ids may have them. */
export function parseKey(key: string): { prefix: string; queueName: string; id: string } {
  const [prefix = "", queueName = "", ...id] = key.split(":");
  return { prefix: prefixOf(prefix), queueName, id: id.join(":") };
}

/** The families of the jobs of all queues. */
export class Flows {
  constructor(private readonly queueOf: (prefix: string, name: string) => BrokerQueue) {}

  /** Throws unless there is such a parent. */
  async checkParent(parentKey: string): Promise<void> {
    if (await this.parent(parentKey)) return;
    throw jobError(ErrorCode.ParentJobNotExist, parentKey, "addJob");
  }

  /** Let a parent wait for one child more. */
  async addChild(parentKey: string, child: string): Promise<void> {
    const known = await this.parent(parentKey);
    if (!known) return;
    const posted = await known.queue.posted(known.found);
    await known.queue.change(known.found.log, (before) => {
      const all = childrenOf(posted, before);
      if (all.includes(child)) return undefined;
      return { state: { ...before, children: [...(before.children ?? []), child] } };
    });
  }

  /** Give a job that exists to a parent. Throws if it has another one. */
  async adopt(
    queue: BrokerQueue,
    id: string,
    parent: JobJson["parent"],
    parentKey: string,
  ): Promise<void> {
    const known = await queue.job(id);
    if (!known) return;
    const posted = await queue.posted(known.found);
    const former = parentOf(posted, known.state);
    if (former && former !== parentKey && (await this.parent(former))) {
      throw jobError(ErrorCode.ParentJobCannotBeReplaced, parentKey, "addJob");
    }
    const state = await queue.change(known.found.log, (before) => ({
      state: { ...before, isOrphan: false, parent, parentKey },
    }));
    if (state.outcome === "completed") {
      await this.resolve(queue, { id, posted }, "completed", state, false);
    }
  }

  /** Let the parent of a job that is retried wait for it again. */
  async rejoin(queue: BrokerQueue, id: string, posted: Posted, state: State): Promise<void> {
    const parentKey = parentOf(posted, state);
    const known = parentKey === undefined ? undefined : await this.parent(parentKey);
    if (!known) return;
    const child = keyOf(queue.prefix, queue.name, id);
    await known.queue.change(known.found.log, (before) => {
      const { [child]: result, ...processed } = before.processed ?? {};
      const { [child]: reason, ...ignored } = before.ignored ?? {};
      const failed = before.failed?.filter((one) => one !== child);
      const isKnown = result !== undefined || reason !== undefined;
      if (!isKnown && failed?.length === before.failed?.length) return undefined;
      return { state: { ...before, processed, ignored, failed } };
    });
  }

  /** The children that have not ended. */
  pending(posted: Posted, state: State): string[] {
    const ended = new Set([
      ...Object.keys(state.processed ?? {}),
      ...Object.keys(state.ignored ?? {}),
      ...(state.failed ?? []),
    ]);
    return childrenOf(posted, state).filter((child) => !ended.has(child));
  }

  /** A job's children, by what became of them. */
  family(
    posted: Posted,
    state: State,
  ): {
    processed: Record<string, string>;
    ignored: Record<string, string>;
    failed: string[];
    unprocessed: string[];
  } {
    const { processed = {}, ignored = {}, failed = [] } = state;
    return { processed, ignored, failed, unprocessed: this.pending(posted, state) };
  }

  /** Throws if a job that ends still has children. */
  checkDone(held: Held, state: State): void {
    if (this.pending(held.posted, state).length) {
      throw jobError(ErrorCode.JobPendingChildren, held.id, "moveToFinished");
    }
    if (state.failed?.length) {
      throw jobError(ErrorCode.JobHasFailedChildren, held.id, "moveToFinished");
    }
  }

  /** Whether a parent was received although children of its flow have not ended. */
  isEarly({ posted }: Held, state: State): boolean {
    if (!posted.children || state.deferredFailure || state.goesOn) return false;
    const known = new Set(posted.children);
    return this.pending(posted, state).some((child) => known.has(child));
  }

  /** Tell the parent of a job that has ended; the last child lets it begin. */
  async resolve(
    queue: BrokerQueue,
    held: { id: string; posted: Posted },
    outcome: "completed" | "failed",
    state: State,
    isRemoved: boolean,
  ): Promise<void> {
    const { opts } = held.posted;
    const parentKey = parentOf(held.posted, state);
    if (!parentKey) return;
    const known = await this.parent(parentKey);
    if (!known) return;
    const child = keyOf(queue.prefix, queue.name, held.id);
    const posted = await known.queue.posted(known.found);
    await known.queue.change(known.found.log, (before) => ({
      state: resolved(before, child, outcome, state, opts, isRemoved),
    }));
    await this.release(known.queue, known.found.log, posted, known.found.message.id);
  }

  /** Let a parent begin whose children have ended. */
  async release(queue: BrokerQueue, log: string, posted: Posted, message: string): Promise<void> {
    const { state } = await queue.latest(log);
    const isFree = !this.pending(posted, state).length && !state.failed?.length;
    if (!isFree && !state.deferredFailure && !state.goesOn) return;
    const id = posted.id ?? message;
    const found = await queue.find(id);
    const due = found?.delivery?.next_attempt_at ?? found?.message.due_at;
    // It is released, or it runs and adds children.
    if (!found || Date.parse(due) < Date.now() + PARKED_MS / 2) return;
    try {
      const delay = posted.opts.delay ?? 0;
      await queue.hooks.move(found.message.id, { deliverIn: delay / 1000 });
      const event: Event = { event: delay ? "delayed" : "waiting", jobId: id };
      if (delay) event.delay = String(Date.now() + delay);
      else event.prev = "waiting-children";
      queue.tell(event);
    } catch (error) {
      // Another child did so a moment ago.
      if (!(error instanceof Conflict)) throw error;
    }
  }

  /** Let a parent no longer wait for a child; whether it did. */
  async forget(parentKey: string, child: string): Promise<boolean> {
    const known = await this.parent(parentKey);
    if (!known) throw jobError(ErrorCode.ParentJobNotExist, parentKey, "removeChildDependency");
    const posted = await known.queue.posted(known.found);
    let isPending = false;
    await known.queue.change(known.found.log, (before) => {
      isPending = this.pending(posted, before).includes(child);
      if (!isPending) return undefined;
      return { state: { ...before, forgotten: [...(before.forgotten ?? []), child] } };
    });
    if (isPending) {
      await this.release(known.queue, known.found.log, posted, known.found.message.id);
    }
    return isPending;
  }

  /**
   * Let the parents of removed jobs no longer wait for them; whether one of the parents is in the
   * same queue.
   */
  async leave(queue: BrokerQueue, removed: readonly Listed[]): Promise<boolean> {
    // A child of a flow has an id of its own. The bodies of other jobs are not read.
    const own = removed.filter(({ id, message }) => id !== message);
    const parents = await Promise.all(
      own.map(async ({ id, message }) => {
        const posted = readPosted(await queue.hooks.body(message), "", 0);
        const { state } = await queue.latest(queue.logOf(id, posted.generation ?? 0));
        return parentOf(posted, state);
      }),
    );
    let isHere = false;
    // One after the other: siblings change the state of the same parent.
    for (const [index, { id }] of own.entries()) {
      const parentKey = parents[index];
      if (!parentKey || !(await this.parent(parentKey))) continue;
      await this.forget(parentKey, keyOf(queue.prefix, queue.name, id));
      const { prefix, queueName } = parseKey(parentKey);
      if (prefix === queue.prefix && queueName === queue.name) isHere = true;
    }
    return isHere;
  }

  /** Remove the children of a job; false, and nothing is removed, while one of them is active. */
  async removeChildren(posted: Posted, state: State, onlyPending = false): Promise<boolean> {
    const keys = onlyPending ? this.pending(posted, state) : childrenOf(posted, state);
    const known: { queue: BrokerQueue; found: Found; shown: string }[] = [];
    for (const key of keys) {
      const child = await this.parent(key);
      if (!child) continue;
      const isActive = child.shown === "active";
      if (isActive && !onlyPending) return false;
      if (isActive) continue;
      if (!(await this.removeChildren(await child.queue.posted(child.found), child.state))) {
        return false;
      }
      known.push(child);
    }
    for (const { queue, found, shown } of known) {
      if (shown === "completed" || shown === "failed") await queue.hide([found.message.id]);
      else await queue.hooks.cancel(found.message.id).catch(ignoreConflict);
      queue.tell({ event: "removed", jobId: found.id, prev: shown });
    }
    return true;
  }

  /** A job by its key. */
  jobOf(key: string): Promise<JobJson | undefined> {
    const { prefix, queueName, id } = parseKey(key);
    return this.queueOf(prefix, queueName).json(id);
  }

  private async parent(key: string): Promise<
    { queue: BrokerQueue; found: Found; state: State; shown: string } | undefined
  > {
    const { prefix, queueName, id } = parseKey(key);
    const queue = this.queueOf(prefix, queueName);
    try {
      const job = await queue.job(id);
      return job && { queue, ...job };
    } catch (error) {
      // There is no such queue.
      if (error instanceof NotFound) return undefined;
      throw error;
    }
  }
}

function childrenOf(posted: Posted, { children = [], forgotten = [] }: State): string[] {
  const gone = new Set(forgotten);
  return [...(posted.children ?? []), ...children].filter((child) => !gone.has(child));
}

/** The state of a parent after one of its children has ended. */
function resolved(
  parent: State,
  child: string,
  outcome: "completed" | "failed",
  { returnvalue = "null", failedReason = "" }: State,
  opts: Posted["opts"],
  isRemoved: boolean,
): State {
  if (outcome === "completed") {
    const failed = parent.failed?.filter((one) => one !== child);
    return { ...parent, failed, processed: { ...parent.processed, [child]: returnvalue } };
  }
  if (opts.ignoreDependencyOnFailure || opts.continueParentOnFailure) {
    const ignored = { ...parent.ignored, [child]: failedReason };
    return { ...parent, ignored, ...(opts.continueParentOnFailure ? { goesOn: true } : {}) };
  }
  if (opts.removeDependencyOnFailure) {
    return { ...parent, forgotten: [...(parent.forgotten ?? []), child] };
  }
  // As in BullMQ: a child that is removed when it fails holds nobody back.
  if (isRemoved && !opts.failParentOnFailure) {
    return { ...parent, forgotten: [...(parent.forgotten ?? []), child] };
  }
  const failed = [...new Set([...(parent.failed ?? []), child])];
  // A parent that runs fails when it ends, or when it would wait.
  const isActive = parent.started > parent.settled;
  if (!opts.failParentOnFailure || isActive) return { ...parent, failed };
  return { ...parent, failed, deferredFailure: `child ${child} failed` };
}

function ignoreConflict(error: unknown): void {
  if (!(error instanceof Conflict) && !(error instanceof NotFound)) throw error;
}
