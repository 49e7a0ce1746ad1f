// The table of overlays in the docs says what the registry does.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { OVERLAYS } from "../../../rollout_traces/inspector/components/overlays/registry.js";

test("every overlay has its row, with what it needs", () => {
  const docs = readFileSync(new URL("../../../docs/inspector.md", import.meta.url), "utf8");
  const rows = docs
    .slice(docs.indexOf("| overlay |"))
    .split("\n\n")[0]
    .split("\n")
    .slice(2)
    .map(line => line.split(/(?<!\\)\|/).map(cell => cell.trim()));
  const told = rows.map(([, name, , needs]) => [name, [...needs.matchAll(/`([^`]+)`/g)].map(match => match[1])]);
  const always = ["loss_mask", "response_mask", "turns", "group", "step", "rules"];
  assert.deepEqual(
    told,
    OVERLAYS.map(overlay => [overlay.label, overlay.needs.filter(name => !always.includes(name))]),
  );
});
