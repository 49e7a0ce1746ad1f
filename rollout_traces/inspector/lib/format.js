// Numbers as a person reads them.

import { inert } from "./text.js";

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "\u2013";
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "\u221e" : "\u2212\u221e";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return minus(value.toLocaleString("en-US"));
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return minus(exponential(value, Math.max(digits - 2, 1)));
  if (size >= 999.95) return number(Math.round(value));
  if (size < 0.1) return minus(String(Number(value.toPrecision(3))));
  const places = size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return minus(
    value
      .toFixed(places)
      .replace(/(\.\d*?)0+$/, "$1")
      .replace(/\.$/, ""),
  );
}

// A value of any kind: a number, or its text.
export function shown(value, digits) {
  return value === null || value === undefined || typeof value === "number"
    ? number(value, digits)
    : inert(String(value));
}

export function signed(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
  return value > 0 ? "+" + number(value) : number(value);
}

// One of several that stand below each other, the largest of them so large: as many places as that one has.
export function signedBeside(value, largest) {
  const places = Math.min(Math.max(2 - Math.floor(Math.log10(largest)), 0), 12);
  if (!(largest >= 1e-6) || Number.isNaN(value) || value === null) return signed(value);
  const text = value.toFixed(places);
  return Number(text) === 0 ? "0" : value > 0 ? "+" + text : minus(text);
}

export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "\u2013";
  const value = share * 100;
  const size = Math.abs(value);
  if (size !== 0 && size < 0.005) return value > 0 ? "<0.01%" : ">\u22120.01%";
  if (size >= 99.5 && size < 100) return value > 0 ? ">99%" : "<\u221299%";
  const places = size !== 0 && size < 1 ? 2 : size < 10 ? 1 : 0;
  return minus(value.toFixed(places).replace(/\.0+$/, "") + "%");
}

// A p value: two digits, and one with its power of ten where it is small; `p_text` of the commands says the same.
export function pValue(p) {
  if (p === null || p === undefined || Number.isNaN(p)) return "\u2013";
  return p !== 0 && p < 1e-4 ? exponential(p, 0) : String(Number(p.toPrecision(2)));
}

export function inUnit(unit, value) {
  return unit === "share" ? percent(value) : number(value);
}

export function compact(value) {
  if (value === null || value === undefined) return "\u2013";
  const size = Math.abs(value);
  if (size >= 1e9) return minus((value / 1e9).toFixed(1) + "G");
  if (size >= 1e6) return minus((value / 1e6).toFixed(1) + "M");
  if (size >= 1e3) return minus((value / 1e3).toFixed(size >= 1e4 ? 0 : 1) + "k");
  return number(value);
}

export function seconds(value) {
  if (value === null || value === undefined) return "\u2013";
  if (value > 0 && value < 0.0005) return "<1 ms";
  if (value < 0.9995) return (value * 1000).toFixed(0) + " ms";
  if (value < 119.95) return value.toFixed(1) + " s";
  if (value < 7200) return (value / 60).toFixed(1) + " min";
  if (value < 172800) return (value / 3600).toFixed(1) + " h";
  return number(Math.round(value / 86400)) + " days";
}

export function plural(n, one, many = one + "s") {
  return `${number(n)} ${n === 1 ? one : many}`;
}

// 5e-4 and 2.5e6: no zeros at the end, no plus.
const exponential = (value, places) =>
  value
    .toExponential(places)
    .replace(/(\.\d*?)0+e/, "$1e")
    .replace(".e", "e")
    .replace("e+", "e");

function minus(text) {
  return text.startsWith("-") ? "\u2212" + text.slice(1) : text;
}
