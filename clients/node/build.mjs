// Compiles the sources twice into dist: as ES modules, and as CommonJS for `require`.
import { execFileSync } from "node:child_process";
import { rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const tsc = createRequire(import.meta.url).resolve("typescript/bin/tsc");
process.chdir(import.meta.dirname ?? new URL(".", import.meta.url).pathname);
rmSync("dist", { recursive: true, force: true });
for (const project of ["tsconfig.json", "tsconfig.cjs.json"]) {
  execFileSync(process.execPath, [tsc, "-p", project], { stdio: "inherit" });
}
// The package says "module"; the files of this folder are not.
writeFileSync("dist/cjs/package.json", '{"type": "commonjs"}\n');
