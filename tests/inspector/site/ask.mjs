// Asks a site what its pages would ask: `node ask.mjs FOLDER`, with [[function, asked], ...] as JSON on stdin.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { answers, read } from "../../../rollout_traces/inspector/components/site/answers.js";

const [folder] = process.argv.slice(2);
globalThis.fetch = async name => new Response(readFileSync(join(folder, name)));
const server = answers(await read("about"));
const given = [];
for (const [name, asked] of JSON.parse(readFileSync(0, "utf8"))) given.push(await server[name](asked));
process.stdout.write(JSON.stringify(given));
