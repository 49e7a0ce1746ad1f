// The signs and words of the query language, as docs/query.md has them.

const WORDS = ["and", "or", "not", "in", "between", "is", "null", "has", "contains", "text", "true", "false"];
const SAME = new Map(Object.entries({ "==": "=", "<>": "!=", "&&": "and", "||": "or", "!": "not" }));
const ESCAPES = { n: "\n", t: "\t", r: "\r", "'": "'", '"': '"', "\\": "\\" };
const TOKEN = new RegExp(
  [
    "(?<space>\\s+)",
    "(?<number>(?:\\d+\\.?\\d*|\\.\\d+)(?:[eE][+-]?\\d+)?(?![\\p{L}\\p{N}_.]))",
    "(?<string>'(?:[^'\\\\]|\\\\.)*'|\"(?:[^\"\\\\]|\\\\.)*\")",
    "(?<quoted>`(?:[^`]|``)+`)",
    "(?<name>[\\p{L}_][\\p{L}\\p{N}_.]*(?:/[\\p{L}\\p{N}_.:@+\\-]*[\\p{L}\\p{N}_:@])*)",
    "(?<symbol><=|>=|==|!=|<>|&&|\\|\\||!~|[!~<>=(),[\\]+\\-*/%])",
  ].join("|"),
  "suy",
);

export class FilterError extends Error {
  constructor(message, query, start, stop) {
    super(message);
    Object.assign(this, { kind: "QueryError", query, start, stop });
  }
}

// The tokens of a query, with their places; the last one is its end.
export function tokens(query) {
  const found = [];
  for (let at = 0; at < query.length; at = TOKEN.lastIndex) {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(query);
    if (!match) throw new FilterError(`${query.slice(at, at + 12)} cannot be read.`, query, at, at + 1);
    const [kind, text] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    if (kind !== "space") found.push({ ...valued(kind, text), start: at, stop: TOKEN.lastIndex });
  }
  return [...found, { kind: "end", value: "", start: query.length, stop: query.length }];
}

function valued(kind, text) {
  if (kind === "number") return { kind, value: Number(text) };
  if (kind === "string")
    return { kind, value: text.slice(1, -1).replace(/\\(.)/gs, (all, sign) => ESCAPES[sign] ?? all) };
  if (kind === "quoted") return { kind, value: text.slice(1, -1).replaceAll("``", "`") };
  const same = SAME.get(text) ?? text;
  if (kind === "symbol" && !/^\w/.test(same)) return { kind, value: same };
  return WORDS.includes(same.toLowerCase()) ? { kind: "word", value: same.toLowerCase() } : { kind, value: same };
}
