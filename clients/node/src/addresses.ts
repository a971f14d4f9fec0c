/**
 * Choose the address of the broker for the next request, and avoid addresses that failed recently.
 */

/** Seconds for which the client prefers all other addresses to one that failed. */
export const AWAY_S = 10;

/** The addresses of one client. Prefers the one that works. */
export class Addresses {
  private readonly awayUntil = new Map<string, number>();
  private preferred = "";

  constructor(
    private readonly urls: readonly string[],
    private readonly clock: () => number = () => performance.now() / 1000,
  ) {}

  /**
   * Return all addresses in the order in which to try them: the one that worked last, the others,
   * and those that failed recently, oldest failure first.
   */
  ordered(): string[] {
    const start = Math.max(0, this.urls.indexOf(this.preferred));
    const rotated = [...this.urls.slice(start), ...this.urls.slice(0, start)];
    const now = this.clock();
    const away = (url: string): number => Math.max(0, (this.awayUntil.get(url) ?? 0) - now);
    return rotated.sort((one, other) => away(one) - away(other));
  }

  /** Record that an address responded. */
  works(url: string): void {
    this.preferred = url;
    this.awayUntil.delete(url);
  }

  /** Record that an address failed. */
  failed(url: string): void {
    this.awayUntil.set(url, this.clock() + AWAY_S);
  }
}
