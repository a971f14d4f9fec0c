/** Where workers and receivers report what they do not throw. */

/** What `console` and the usual logging libraries have. */
export interface Logger {
  /** What passes by itself, or is the sender's fault. */
  warn(message: string): void;
  /** A handler that failed, with its error. */
  error(message: string, error: unknown): void;
}
