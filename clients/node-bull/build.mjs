// Compiles the sources into dist/cjs, whose export is the class itself, as Bull's is. `import` gets
// the same class by way of dist/esm/index.js.
import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const tsc = require.resolve("typescript/bin/tsc");
process.chdir(import.meta.dirname ?? new URL(".", import.meta.url).pathname);
rmSync("dist", { recursive: true, force: true });
execFileSync(process.execPath, [tsc, "-p", "tsconfig.json"], { stdio: "inherit" });
// The package says "module"; the files of this folder are not.
writeFileSync("dist/cjs/package.json", '{"type": "commonjs"}\n');
mkdirSync("dist/esm");
writeFileSync("dist/esm/index.js", 'export { default } from "../cjs/index.js";\n');
writeFileSync("dist/esm/index.d.ts", 'import Queue = require("../cjs/index.js");\nexport default Queue;\n');
