/** The errors of this package, and those that BullMQ's own backends throw. */

import { ConnectionClosedError, ErrorCode, UnrecoverableError } from "bullmq";
import { ConnectionFailed, RateLimited, Unavailable } from "hookstation-client";

/** Something of BullMQ that cannot be kept in a broker of webhooks. It had no effect. */
export class NotSupported extends Error {
  constructor(
    /** What was asked for, by the name that it has in BullMQ. */
    readonly feature: string,
    sentence: string,
  ) {
    super(`${feature} is not supported by @hookstation/bullmq: ${sentence}`);
    this.name = "NotSupported";
  }
}

const SENTENCES: Partial<Record<ErrorCode, (job: string, command: string, state: string) => string>> = {
  [ErrorCode.JobNotExist]: (job, command) => `Missing key for job ${job}. ${command}`,
  [ErrorCode.JobLockNotExist]: (job, command) => `Missing lock for job ${job}. ${command}`,
  [ErrorCode.JobLockMismatch]: (job, command, state) =>
    `Lock mismatch for job ${job}. Cmd ${command} from ${state}`,
  [ErrorCode.JobNotInState]: (job, command, state) =>
    `Job ${job} is not in the ${state} state. ${command}`,
  [ErrorCode.JobPendingChildren]: (job, command) =>
    `Job ${job} has pending dependencies. ${command}`,
  [ErrorCode.ParentJobNotExist]: (job, command) =>
    `Missing key for parent job ${job}. ${command}`,
  [ErrorCode.ParentJobCannotBeReplaced]: (job, command) =>
    `The parent job ${job} cannot be replaced. ${command}`,
  [ErrorCode.JobHasFailedChildren]: (job, command) =>
    `Cannot complete job ${job} because it has at least one failed child. ${command}`,
};

/** The error that BullMQ throws for a code; programs compare code and sentence. */
export function jobError(
  code: ErrorCode,
  job: string,
  command: string,
  state = "active",
): Error & { code: ErrorCode } {
  const sentence = SENTENCES[code]?.(job, command, state) ?? `Code ${code} for ${job}. ${command}`;
  const Kind = code === ErrorCode.JobHasFailedChildren ? UnrecoverableError : Error;
  return Object.assign(new Kind(sentence), { code });
}

/** Whether the broker may do it later. */
export function isPassing(error: unknown): boolean {
  return (
    error instanceof ConnectionFailed ||
    error instanceof RateLimited ||
    error instanceof Unavailable
  );
}

/** Run a call; what ends by itself becomes the error after which BullMQ's workers try again. */
export async function tolerant<T>(call: () => Promise<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    if (!isPassing(error)) throw error;
    throw new ConnectionClosedError((error as Error).message);
  }
}
