// What overlays compute with.

// One value a token from up to four of its tracks; NaN where the policy did not sample it.
export function each(tokens, names, value, { sampledOnly = true } = {}) {
  const out = new Float32Array(tokens.n).fill(NaN);
  const [a, b, c, d] = names.map(name => tokens.get(name));
  const sampled = tokens.get("response_mask");
  for (let i = 0; i < tokens.n; i++) {
    if (sampledOnly && !sampled[i]) continue;
    out[i] = value(a[i], b && b[i], c && c[i], d && d[i]);
  }
  return out;
}

// The k3 estimate of a divergence by a difference of logprobs.
export function k3(difference) {
  const d = Math.min(Math.max(difference, -20), 20);
  return Math.exp(d) - d - 1;
}

// The mean of the finite values in [start, stop); NaN where there is none.
export function meanOf(values, start = 0, stop = values.length) {
  let sum = 0;
  let count = 0;
  for (let i = start; i < stop; i++)
    if (Number.isFinite(values[i])) {
      sum += values[i];
      count += 1;
    }
  return count ? sum / count : NaN;
}
