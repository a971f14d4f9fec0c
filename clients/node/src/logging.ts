/** The logger of workers and receivers, for errors that they do not throw. */

/** The methods that `console` and the usual logging libraries have. */
export interface Logger {
  /** Log a temporary failure or an invalid request. */
  warn(message: string): void;
  /** Log a failed handler, with its error. */
  error(message: string, error: unknown): void;
}
