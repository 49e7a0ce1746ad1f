// The query language of docs/query.md over the columns of a site.

import { occurs, phraseOf } from "./search.js";
import { FilterError, tokens } from "./tokens.js";

const ALIASES = { tool: "tool_names", tools: "tool_names", error: "error_signatures", label: "labels", note: "notes" };
const FUNCTIONS = {
  abs: value => Math.abs(value),
  min: (...values) => Math.min(...values),
  max: (...values) => Math.max(...values),
  round: (value, digits = 0) => (Math.sign(value) * Math.round(Math.abs(value) * 10 ** digits)) / 10 ** digits,
};
const HYPHENATED = /^[\p{L}_][\p{L}\p{N}_.]*(?:-[\p{L}\p{N}_.]+)+$/u;

// rows: {columns: {name: {kind, values}}, flags: all names of flags, texts(): what `text`, `prompt` and `reply` look through}.
// Returns {test: row => boolean, or null for every row; order: [{at, descending}]; readsTexts; looked: what finds in a text
// the piece that was looked for}.
export function compiled(query, rows) {
  const reading = new Reading(query, rows);
  const test = reading.is("end") || reading.atOrder() ? null : reading.either();
  const order = reading.atOrder() ? (reading.skip(2), reading.order()) : [];
  if (!reading.is("end")) reading.refuse("'and', 'or', 'order by' or the end of the query");
  return { test, order, readsTexts: reading.readsTexts, looked: reading.looked };
}

export function sortKeys(text, rows) {
  const reading = new Reading(text, rows);
  const order = reading.order();
  if (!reading.is("end")) reading.refuse("',' or the end of the sort");
  return order;
}

// Unknown values come last; equal rows as they arrived.
export function sorted(found, order, arrived) {
  const compare = (a, b) => {
    for (const { at, descending } of order) {
      const [left, right] = [at(a), at(b)];
      if (left === right) continue;
      if (left === null) return 1;
      if (right === null) return -1;
      return left < right !== descending ? -1 : 1;
    }
    return arrived[a] - arrived[b];
  };
  return order.length ? [...found].sort(compare) : found;
}

class Reading {
  constructor(query, rows) {
    Object.assign(this, { query, rows, tokens: tokens(query), at: 0, readsTexts: false, looked: [] });
  }

  get token() {
    return this.tokens[this.at];
  }

  is(kind) {
    return this.token.kind === kind;
  }

  isName(word, ahead = 0) {
    const token = this.tokens[this.at + ahead];
    return token?.kind === "name" && token.value.toLowerCase() === word;
  }

  take(...values) {
    const { kind, value } = this.token;
    if (!["word", "symbol"].includes(kind) || !values.includes(value)) return null;
    this.at += 1;
    return value;
  }

  takeName(word) {
    if (!this.isName(word)) return false;
    this.at += 1;
    return true;
  }

  skip(n) {
    this.at += n;
  }

  expect(value) {
    if (!this.take(value)) this.refuse(`'${value}'`);
  }

  refuse(expected) {
    const { start, stop } = this.token;
    const seen = this.is("end") ? "the query ends" : `found '${this.query.slice(start, stop)}'`;
    this.wrong(`${seen} where ${expected} was expected.`, { start, stop });
  }

  wrong(message, { start, stop }) {
    throw new FilterError(message, this.query, start, stop);
  }

  atOrder() {
    return this.isName("order") && this.isName("by", 1);
  }

  order() {
    const keys = [];
    do {
      let descending = Boolean(this.take("-"));
      if (!descending) this.take("+");
      const { kind, at, name } = this.sum();
      if (this.takeName("desc")) descending = !descending;
      else this.takeName("asc");
      keys.push({ at: kind === "tags" ? row => at(row)?.length ?? null : at, descending, name });
    } while (this.take(","));
    return keys;
  }

  either() {
    const parts = [this.both()];
    while (this.take("or")) parts.push(this.both());
    return parts.length === 1 ? parts[0] : row => parts.some(part => part(row));
  }

  both() {
    const parts = [this.unary()];
    while (this.take("and")) parts.push(this.unary());
    return parts.length === 1 ? parts[0] : row => parts.every(part => part(row));
  }

  unary() {
    if (this.take("not")) {
      const { length } = this.looked;
      const part = this.unary();
      this.looked.length = length; // what must not occur is not shown
      return row => !part(row);
    }
    if (this.is("symbol") && this.token.value === "(") {
      const opening = this.at;
      this.at += 1;
      const node = this.either();
      this.expect(")");
      if (!node.ofValue || this.endsATest()) return node;
      this.at = opening;
    }
    return this.test();
  }

  endsATest() {
    return this.is("end") || ["and", "or", ")"].includes(this.token.value) || this.atOrder();
  }

  test() {
    if (this.take("text")) return this.search();
    return this.tested(this.sum());
  }

  search() {
    const how = this.take("contains", "~") || "phrase";
    return this.looks("text", how, this.string());
  }

  // In the texts themselves, where the column has their first words alone.
  looks(part, how, pattern) {
    this.readsTexts = true;
    const text = row => this.rows.texts()[part](row);
    const piece = how === "~" ? this.expression(pattern) : null;
    this.looked.push(whole => (piece ? (piece.exec(whole)?.[0].slice(0, 60) ?? "") : pattern));
    if (how === "phrase") {
      const phrase = phraseOf(pattern);
      return row => occurs(phrase, this.rows.texts(), row);
    }
    const matches = this.matcher(how, pattern);
    return row => matches(text(row));
  }

  matcher(how, pattern) {
    const small = pattern.toLowerCase();
    if (how === "contains") return text => text.toLowerCase().includes(small);
    const expression = this.expression(pattern, how === "like");
    return text => expression.test(text);
  }

  // A regular expression, or what LIKE takes: % for anything, _ for one character.
  expression(pattern, like = false) {
    const literal = sign => sign.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
    const liked = () =>
      pattern.replace(/\\(.)|[^\\]/gs, (sign, kept) =>
        kept ? literal(kept) : { "%": ".*", _: "." }[sign] || literal(sign),
      );
    const plain = pattern.replace(/^\(\?i\)/, "");
    try {
      return like ? new RegExp(`^${liked()}$`, "isu") : new RegExp(plain, plain === pattern ? "u" : "iu");
    } catch (error) {
      return this.wrong(`no regular expression: ${error.message}`, this.tokens[this.at - 1]);
    }
  }

  tested(term) {
    const operator = this.take("=", "!=", "<", "<=", ">", ">=");
    if (operator) return this.compared(term, operator);
    if (this.take("is")) {
      const not = Boolean(this.take("not"));
      const empty = this.takeName("empty");
      if (!empty) this.expect("null");
      const found = empty ? isEmpty(term) : row => term.at(row) === null;
      return row => found(row) !== not;
    }
    const regex = this.take("~", "!~");
    if (regex) {
      const found = this.matches(term, "~", this.string());
      return regex === "~" ? found : row => !found(row);
    }
    const not = Boolean(this.take("not"));
    const found = this.worded(term);
    if (found) return not ? row => !found(row) : found;
    if (not || !this.endsATest()) this.refuse("one of =, !=, <, <=, >, >=, is, in, between, has, contains, like, ~");
    return this.bare(term);
  }

  worded(term) {
    if (this.take("in")) return this.among(term);
    if (this.take("between")) {
      const values = this.token.value === "[" ? this.values("[", "]") : null;
      const low = values ? values[0] : this.sum();
      if (!values) this.expect("and");
      return this.ranged(term, low, values ? values[1] : this.sum());
    }
    if (this.take("has")) return this.has(term, this.textOrName());
    if (this.take("contains")) return this.matches(term, "contains", this.textOrName().value);
    if (this.takeName("like")) return this.matches(term, "like", this.string());
    return null;
  }

  bare(term) {
    const test =
      term.kind === "unknown" && this.isFlag(term.name)
        ? this.has(this.column("flags", term), { value: term.name })
        : ["number", "any"].includes(this.known(term).kind)
          ? row => Boolean(term.at(row))
          : row => !isEmpty(term)(row);
    test.ofValue = true; // in brackets it may turn out to be a part of a longer value
    return test;
  }

  isFlag(name) {
    return this.rows.flags.includes(name);
  }

  compared(term, operator) {
    const other = this.sum();
    if (other.constant && other.value === null) {
      if (!["=", "!="].includes(operator)) this.wrong("null has no order; use 'is null' or 'is not null'.", other);
      return row => (term.at(row) === null) === (operator === "=");
    }
    if (term.kind === "tags") {
      const has = this.has(term, { value: other.value ?? other.name, ...other });
      if (!["=", "!="].includes(operator)) this.wrong("a list of names; use has.", term);
      return operator === "=" ? has : row => !has(row);
    }
    const [left, right] = this.alike(term, other);
    return row => {
      const [a, b] = [left(row), right(row)];
      if (a === null || b === null) return false;
      if (operator === "=") return a === b;
      if (operator === "!=") return a !== b;
      return operator.startsWith("<")
        ? a < b || (operator === "<=" && a === b)
        : a > b || (operator === ">=" && a === b);
    };
  }

  // Two values that can be compared: an unquoted word beside a text is that text, numbers in a mixed column count as such.
  alike(left, right) {
    if (right.kind === "unknown" && ["text", "mixed"].includes(left.kind)) right = constant(right.name, right);
    this.known(left);
    this.known(right);
    const kinds = [left.kind, right.kind];
    if (left.kind !== right.kind && !kinds.includes("mixed"))
      this.wrong(left.kind === "number" ? "holds numbers." : "holds texts, which stand in quotes.", left);
    const numbers = kinds.includes("mixed") && kinds.includes("number");
    return [left, right].map(term => (numbers ? row => asNumber(term.at(row)) : term.at));
  }

  known(term) {
    if (term.kind === "unknown") this.wrong(`no column '${term.name}'.`, term);
    return term;
  }

  ranged(term, low, high) {
    const [value, lowest] = this.alike(term, low);
    const [, highest] = this.alike(term, high);
    return row => {
      const [v, a, b] = [value(row), lowest(row), highest(row)];
      return v !== null && a !== null && b !== null && a <= v && v <= b;
    };
  }

  among(term) {
    if (["name", "quoted"].includes(this.token.kind) && term.kind === "text" && term.constant) {
      const { start, stop, value } = this.token;
      this.at += 1;
      return this.has(this.column(value, { start, stop }), term);
    }
    const square = this.token.value === "[";
    const values = this.values(square ? "[" : "(", square ? "]" : ")");
    if (square && values.length === 2 && values.every(each => each.kind === "number"))
      return this.ranged(term, ...values);
    if (term.kind === "tags") {
      const each = values.map(value => this.has(term, { value: value.value ?? value.name, ...value }));
      return row => each.some(test => test(row));
    }
    const given = values.filter(value => value.kind !== "any").map(value => this.alike(term, value));
    const nothing = given.length < values.length;
    return row =>
      (nothing && term.at(row) === null) ||
      given.some(([left, right]) => left(row) !== null && left(row) === right(row));
  }

  values(opening, closing) {
    this.expect(opening);
    const found = [this.sum()];
    while (this.take(",")) found.push(this.sum());
    this.expect(closing);
    return found;
  }

  has(term, name) {
    if (term.kind !== "tags") this.wrong("has looks into a list of names, such as flags.", term);
    if (term.name === "flags" && !this.isFlag(name.value)) this.wrong(`no flag '${name.value}'.`, name);
    return row => Boolean(term.at(row)?.includes(name.value));
  }

  matches(term, how, value) {
    if (how !== "like" && ["prompt", "reply"].includes(term.name)) return this.looks(term.name, how, value);
    if (!["text", "mixed", "tags"].includes(this.known(term).kind) || (term.kind === "tags" && how !== "contains"))
      this.wrong(`${how} looks into texts.`, term);
    const test = this.matcher(how, value);
    return row => {
      const found = term.at(row);
      return found !== null && (Array.isArray(found) ? found.some(test) : test(String(found)));
    };
  }

  string() {
    if (!this.is("string")) this.refuse("a text in quotes");
    return this.tokens[this.at++].value;
  }

  textOrName() {
    if (!this.is("string") && !this.is("name")) this.refuse("a text in quotes");
    return this.tokens[this.at++];
  }

  sum() {
    let left = this.product();
    for (let sign; (sign = this.take("+", "-"));) left = this.arithmetic(left, sign, this.product());
    return left;
  }

  product() {
    let left = this.signed();
    for (let sign; (sign = this.take("*", "/", "%"));) left = this.arithmetic(left, sign, this.signed());
    return left;
  }

  arithmetic(left, sign, right) {
    // `vllm-1`, a word as engines and runs are called, is a difference beside numbers alone
    const name = this.query.slice(left.start, right.stop);
    const numbers = [left, right].every(term => ["number", "mixed"].includes(term.kind));
    const place = { start: left.start, stop: right.stop };
    if (!numbers && HYPHENATED.test(name)) return { kind: "unknown", name, at: () => null, ...place };
    const [a, b] = [this.number(left), this.number(right)];
    const compute = {
      "+": (x, y) => x + y,
      "-": (x, y) => x - y,
      "*": (x, y) => x * y,
      "/": (x, y) => (y ? x / y : null),
      "%": (x, y) => (y ? x % y : null),
    }[sign];
    const at = row => {
      const [x, y] = [a(row), b(row)];
      return x === null || y === null ? null : compute(x, y);
    };
    return { kind: "number", at, ...place };
  }

  number(term) {
    this.known(term);
    if (["text", "tags"].includes(term.kind)) this.wrong("expected a number.", term);
    return row => asNumber(term.at(row));
  }

  signed() {
    const { start } = this.token;
    if (this.take("-")) {
      const term = this.signed();
      return term.constant && term.kind === "number"
        ? constant(-term.value, { start, stop: term.stop })
        : this.arithmetic(constant(0, { start, stop: start }), "-", term);
    }
    if (this.take("+")) return this.signed();
    if (this.take("(")) {
      const term = this.sum();
      this.expect(")");
      return term;
    }
    return this.primary();
  }

  primary() {
    const token = this.token;
    const literal = { true: 1, false: 0, null: null }[token.kind === "word" ? token.value : ""];
    if (token.kind === "number" || token.kind === "string" || literal !== undefined) {
      this.at += 1;
      return constant(literal === undefined ? token.value : literal, token);
    }
    if (token.kind !== "name" && token.kind !== "quoted") this.refuse("a column, such as reward,");
    this.at += 1;
    if (token.kind === "name" && this.token.value === "(" && this.is("symbol")) return this.call(token);
    return this.named(token.value, token, token.kind === "quoted");
  }

  call(token) {
    const name = token.value.toLowerCase();
    const given = this.values("(", ")");
    if (name === "len") {
      const [{ at }] = given;
      return { kind: "number", at: row => at(row)?.length ?? null, start: token.start, stop: token.stop };
    }
    if (!Object.hasOwn(FUNCTIONS, name))
      this.wrong(`no function '${name}'; there is len, ${Object.keys(FUNCTIONS).join(", ")}.`, token);
    const numbers = given.map(term => this.number(term));
    const at = row => {
      const values = numbers.map(number => number(row));
      return values.includes(null) ? null : FUNCTIONS[name](...values);
    };
    return { kind: "number", at, start: token.start, stop: token.stop };
  }

  // A column; `a/b`, one word to the lexer, is a quotient where there is no column of that name.
  named(name, { start, stop }, quoted = false) {
    const found = this.find(name);
    if (found || quoted) return { ...(found || this.known({ kind: "unknown", name, start, stop })), start, stop };
    for (let cut = name.length - 2; cut > 0; cut -= 1) {
      if (!"+-/".includes(name[cut]) || !this.find(name.slice(cut + 1))) continue;
      const left = this.named(name.slice(0, cut), { start, stop: start + cut });
      const right = this.named(name.slice(cut + 1), { start: start + cut + 1, stop });
      if (left.kind !== "unknown") return this.arithmetic(left, name[cut], right);
    }
    return { kind: "unknown", name, at: () => null, start, stop };
  }

  column(name, place) {
    return this.known(this.named(name, place, true));
  }

  find(name) {
    const { columns } = this.rows;
    const own = Object.hasOwn(columns, name) ? name : ALIASES[name];
    if (own === undefined || !Object.hasOwn(columns, own)) return null;
    const { kind, values } = columns[own];
    return { kind, name: own, at: row => values[row] ?? null };
  }
}

const constant = (value, { start, stop }) => ({
  kind: value === null ? "any" : typeof value === "string" ? "text" : "number",
  constant: true,
  value,
  at: () => value,
  start,
  stop,
});

const isEmpty =
  ({ at }) =>
  row => {
    const value = at(row);
    return value === null || value.length === 0;
  };

function asNumber(value) {
  const number = typeof value === "string" ? (value.trim() ? Number(value) : NaN) : value;
  return number === null || Number.isNaN(number) ? null : number;
}
