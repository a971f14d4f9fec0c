// Compiles the sources into dist/cjs. `import` gets the same modules by way of dist/esm/index.js: a
// second copy would have classes of its own, for which `instanceof` is false. hookstation.proto,
// which describes the stream, is copied from the broker's sources.
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const tsc = require.resolve("typescript/bin/tsc");
process.chdir(import.meta.dirname ?? new URL(".", import.meta.url).pathname);
rmSync("dist", { recursive: true, force: true });
execFileSync(process.execPath, [tsc, "-p", "tsconfig.json"], { stdio: "inherit" });
copyFileSync("../../delivery/grpc/hookstation.proto", "dist/hookstation.proto");
// The package says "module"; the files of this folder are not.
writeFileSync("dist/cjs/package.json", '{"type": "commonjs"}\n');
mkdirSync("dist/esm");
const names = Object.keys(require("./dist/cjs/index.js")).join(", ");
writeFileSync("dist/esm/index.js", `export { ${names} } from "../cjs/index.js";\n`);
writeFileSync("dist/esm/index.d.ts", 'export * from "../cjs/index.js";\n');
