/** The addresses of a broker: which one to try next, and which ones were away lately. */

/** Seconds for which an address that failed is tried last. */
export const AWAY_S = 10;

/** Keeps to the address that works. */
export class Addresses {
  private readonly awayUntil = new Map<string, number>();
  private preferred = "";

  constructor(
    private readonly urls: readonly string[],
    private readonly clock: () => number = () => performance.now() / 1000,
  ) {}

  /**
   * All addresses in the order in which to try them: the one that worked last, the others, and
   * those that failed lately, the one that failed first before the others.
   */
  ordered(): string[] {
    const start = Math.max(0, this.urls.indexOf(this.preferred));
    const rotated = [...this.urls.slice(start), ...this.urls.slice(0, start)];
    const now = this.clock();
    const away = (url: string): number => Math.max(0, (this.awayUntil.get(url) ?? 0) - now);
    return rotated.sort((one, other) => away(one) - away(other));
  }

  /** Remember that an address answered. */
  works(url: string): void {
    this.preferred = url;
    this.awayUntil.delete(url);
  }

  /** Remember that an address failed. */
  failed(url: string): void {
    this.awayUntil.set(url, this.clock() + AWAY_S);
  }
}
