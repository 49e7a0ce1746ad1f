// Colours that carry meaning, as CSS custom properties so that light and dark share the code.

// Low to high reward: terracotta, grey, teal; readable without red-green vision.
export function rewardColour(value, range) {
  if (value === null || value === undefined || Number.isNaN(value)) return "var(--rt-unknown)";
  const [low, high] = range || [0, 1];
  const share = high > low ? Math.min(Math.max((value - low) / (high - low), 0), 1) : 0.5;
  const end = share < 0.5 ? "var(--rt-low)" : "var(--rt-high)";
  return `color-mix(in oklab, ${end} ${Math.round(Math.abs(share - 0.5) * 200)}%, var(--rt-middle))`;
}

// The value below which a share of the finite values lies, between two of them where it falls there.
export function quantile(values, share) {
  const finite = Float64Array.from(values.filter(Number.isFinite)).sort();
  const at = share * (finite.length - 1);
  const low = Math.floor(at);
  return at > low ? finite[low] + (finite[low + 1] - finite[low]) * (at - low) : (finite[low] ?? NaN);
}
