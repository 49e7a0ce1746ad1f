// Clipping and masking rules that can be tried. One entry a rule, and nothing else anywhere: the sliders, the address,
// the figures of a step and of a rollout are made from it.
//
// A token is {ratio, mismatch, sign, staleness, drift}: ln(new / old) with old the prox logprob where it is known, else
// the engine's; ln(prox / rollout); the sign of its advantage; its staleness; p − p_rollout, p of the newest
// logprob known. NaN is unknown. lost(...values) gives a function token -> the share of the token's update that the
// rule takes away: 1 masked, 0 untouched, between truncated, NaN unobserved.
//
// params: {label, low, high, step, start}; declared(settings) gives the values that the run itself declares, or null.

const at = (known, lost) => (Number.isNaN(known) ? NaN : lost ? 1 : 0);

export const RULES = [
  {
    key: "clip",
    label: "PPO clip",
    needs: "new_logprobs and advantages",
    meaning: "No gradient above 1 + ε where A > 0, below 1 − ε where A < 0.",
    params: [
      { label: "ε low", low: 0, high: 1, step: 0.01, start: 0.2 },
      { label: "ε high", low: 0, high: 2, step: 0.01, start: 0.2 },
    ],
    declared: settings =>
      settings.clip_low === null || settings.clip_high === null ? null : [settings.clip_low, settings.clip_high],
    lost: (low, high) => {
      const [floor, ceiling] = [low < 1 ? Math.log1p(-low) : -Infinity, Math.log1p(high)];
      return token =>
        at(token.ratio + token.sign, token.sign > 0 ? token.ratio > ceiling : token.sign < 0 && token.ratio < floor);
    },
  },
  {
    key: "dual",
    label: "Dual clip",
    needs: "new_logprobs and advantages",
    meaning: "No gradient where A < 0 and the ratio is above c.",
    params: [{ label: "c", low: 1, high: 10, step: 0.1, start: 3 }],
    declared: () => null,
    lost: c => {
      const ceiling = Math.log(c);
      return token => at(token.ratio + token.sign, token.sign < 0 && token.ratio > ceiling);
    },
  },
  {
    key: "tis",
    label: "TIS",
    needs: "prox_logprobs",
    meaning: "The weight e^(prox − rollout) is cut off at C: the share above it is lost.",
    params: [{ label: "C", low: 1, high: 10, step: 0.1, start: 2 }],
    declared: settings => (settings.importance_cap === null ? null : [settings.importance_cap]),
    lost: c => {
      const cap = Math.log(c);
      return token =>
        Number.isNaN(token.mismatch) ? NaN : token.mismatch > cap ? 1 - Math.exp(cap - token.mismatch) : 0;
    },
  },
  {
    key: "icepop",
    label: "IcePop",
    needs: "prox_logprobs",
    meaning: "Masked where e^(prox − rollout) is below α or above β.",
    params: [
      { label: "α", low: 0, high: 1, step: 0.01, start: 0.5 },
      { label: "β", low: 1, high: 10, step: 0.1, start: 5 },
    ],
    declared: settings =>
      settings.importance_band === null ? null : [settings.importance_band.min, settings.importance_band.max],
    lost: (alpha, beta) => {
      const [low, high] = [Math.log(alpha), Math.log(beta)];
      return token => at(token.mismatch, token.mismatch < low || token.mismatch > high);
    },
  },
  {
    key: "dppo",
    label: "DPPO, binary",
    needs: "the probabilities of single tokens",
    meaning: "Masked where p − p_rollout goes beyond δ in the direction of A.",
    params: [{ label: "δ", low: 0, high: 1, step: 0.01, start: 0.15 }],
    declared: () => null,
    lost: delta => token => at(token.drift + token.sign, token.sign * token.drift > delta),
  },
  {
    key: "stale",
    label: "Staleness limit",
    needs: "versions and train_version",
    meaning: "Masked where the token is more than n versions old.",
    params: [{ label: "n", low: 0, high: 8, step: 1, start: 2 }],
    declared: () => null,
    lost: n => token => at(token.staleness, token.staleness > n),
  },
];

// The rules that are on, as the address holds them: "clip:0.2,0.28;tis:2"; null where none was chosen.
export function parse(text) {
  const chosen = new Map();
  for (const entry of String(text || "").split(";")) {
    const [key, values] = entry.split(":");
    const rule = RULES.find(each => each.key === key);
    const numbers = (values || "").split(",").map(Number);
    if (
      rule &&
      numbers.length === rule.params.length &&
      values &&
      numbers.every((value, i) => value >= rule.params[i].low && value <= rule.params[i].high)
    )
      chosen.set(key, numbers);
  }
  return chosen;
}

export function format(chosen) {
  return (
    RULES.filter(rule => chosen.has(rule.key))
      .map(rule => `${rule.key}:${chosen.get(rule.key).join(",")}`)
      .join(";") || "none"
  );
}

// What a run declares; PPO's clip where it declares nothing.
export function declared(settings) {
  const chosen = new Map();
  for (const rule of RULES) {
    const values = rule.declared(settings);
    if (values) chosen.set(rule.key, values);
  }
  return chosen.size ? chosen : new Map([["clip", [0.2, 0.2]]]);
}

// token -> what each chosen rule takes of it, in the order of RULES.
export function applied(chosen) {
  return RULES.filter(rule => chosen.has(rule.key)).map(rule => ({ rule, lost: rule.lost(...chosen.get(rule.key)) }));
}

// What rules together take of a token: 1 where one masks it; a rule that cannot tell takes nothing. NaN where none can; 0 without rules.
export function together(losses) {
  let left = 1;
  let known = !losses.length;
  for (const lost of losses)
    if (!Number.isNaN(lost)) {
      left *= 1 - lost;
      known = true;
    }
  return known ? 1 - left : NaN;
}

// A rollout's loss token from its tracks.
export function tokenOf(tokens) {
  const track = name => (tokens.has(name) ? tokens.get(name) : null);
  const [rollout, prox, fresh, advantages, versions] = [
    "logprobs",
    "prox_logprobs",
    "new_logprobs",
    "advantages",
    "versions",
  ].map(track);
  const value = (array, i) => (array ? array[i] : NaN);
  return i => {
    const [q, p, n] = [value(rollout, i), value(prox, i), value(fresh, i)];
    const newest = fresh ? n : p;
    return {
      ratio: n - (prox ? p : q),
      mismatch: p - q,
      sign: advantages ? Math.sign(advantages[i]) : NaN,
      staleness:
        !versions || versions[i] < 0 || tokens.trainVersion === null || tokens.trainVersion === undefined
          ? NaN
          : tokens.trainVersion - versions[i],
      drift: Math.exp(newest) - Math.exp(q),
    };
  };
}
