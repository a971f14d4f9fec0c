// Runs BullMQ's tests one after the other; appends the result of each to the file $RESULTS.

import { appendFileSync } from "node:fs";

import { defineConfig } from "vitest/config";

class Lines {
  onTestCaseResult(test) {
    const { state, errors = [] } = test.result();
    const messages = errors.map(({ name, message }) => `${name}: ${message}`);
    const line = JSON.stringify({ test: test.fullName, state, errors: messages });
    appendFileSync(process.env.RESULTS, `${line}\n`);
  }
}

export default defineConfig({
  test: {
    include: ["tests/*.test.ts"],
    setupFiles: ["./setup.ts"],
    // Twice BullMQ's own: a job takes several requests.
    testTimeout: 20_000,
    hookTimeout: 20_000,
    maxWorkers: 1,
    fileParallelism: false,
    reporters: ["default", new Lines()],
  },
});
