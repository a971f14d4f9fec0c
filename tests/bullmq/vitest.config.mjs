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
    // More than BullMQ's own 10 s: a job takes several requests.
    testTimeout: 15_000,
    hookTimeout: 15_000,
    maxWorkers: 1,
    fileParallelism: false,
    reporters: ["default", new Lines()],
  },
});
