// Flags as one reads them: the worst first, one entry a name however often it was seen.

import { percent } from "./format.js";

export const SEVERITIES = ["error", "warn", "info"];

export function bySeverity(a, b) {
  const rank = flag => {
    const at = SEVERITIES.indexOf(flag.severity);
    return at < 0 || flag.usual ? SEVERITIES.length : at;
  };
  return rank(a) - rank(b);
}

// [{name, severity, message, cause, usual, flags: [...]}], worst first, in the order of their places; what a flag
// explains follows it, what is usual in the run comes last.
export function grouped(flags) {
  const byName = new Map();
  for (const flag of flags) {
    if (!byName.has(flag.name))
      byName.set(flag.name, {
        name: flag.name,
        severity: flag.severity,
        message: flag.message,
        cause: flag.cause ?? null,
        usual: flag.usual === true,
        flags: [],
      });
    byName.get(flag.name).flags.push(flag);
  }
  const all = [...byName.values()].sort(bySeverity);
  const children = name => all.filter(entry => entry.cause === name);
  return all.filter(entry => !byName.has(entry.cause)).flatMap(entry => [entry, ...children(entry.name)]);
}

export const USUAL = "common in this run";

// Flags that are a property of the run, in one line; null where there is none.
export function usualLine(usual) {
  if (!usual?.length) return null;
  return `${USUAL} from its first steps, so not coloured on rows: ${usual.map(each => `${each.name.replaceAll("_", " ")} ${percent(each.share)}`).join(", ")}`;
}

// Of n tokens 0, or 1 to 3 where a flag that has a place marks them: info, warn, error. What is usual in the run marks none. Null without marks.
export function tokenMarks(flags, n) {
  const marking = flags.filter(flag => flag.start !== null && flag.stop !== null && !flag.usual);
  if (!marking.length) return null;
  const marks = new Uint8Array(n);
  for (const flag of marking.sort((a, b) => bySeverity(b, a)))
    marks.fill(SEVERITIES.length - Math.max(SEVERITIES.indexOf(flag.severity), 0), flag.start, flag.stop);
  return marks;
}

// The worst severity among flags; null where there is none.
export function worst(flags) {
  return flags.length ? [...flags].sort(bySeverity)[0].severity : null;
}
