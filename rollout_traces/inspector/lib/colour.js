// Colours that carry meaning, as CSS custom properties so that light and dark share the code.

// Low to high reward: terracotta, grey, teal; readable without red-green vision.
export function rewardColour(value, range) {
  if (value === null || value === undefined || Number.isNaN(value)) return "var(--rt-unknown)";
  const [low, high] = range || [0, 1];
  const share = high > low ? Math.min(Math.max((value - low) / (high - low), 0), 1) : 0.5;
  const end = share < 0.5 ? "var(--rt-low)" : "var(--rt-high)";
  return `color-mix(in oklab, ${end} ${Math.round(Math.abs(share - 0.5) * 200)}%, var(--rt-middle))`;
}

// The value below which a share of the finite values lies.
export function quantile(values, share) {
  const known = new Float64Array(values.length);
  let n = 0;
  for (let i = 0; i < values.length; i++) if (Number.isFinite(values[i])) known[n++] = values[i];
  if (!n) return NaN;
  const finite = known.subarray(0, n);
  const at = share * (n - 1);
  const low = Math.floor(at);
  const value = placed(finite, low);
  let next = Infinity;
  for (let i = low + 1; i < n; i++) next = Math.min(next, finite[i]);
  return at > low ? value + (next - value) * (at - low) : value;
}

// The value that sorting would put at a place; what is less stands before it then, what is greater after it.
// (Hoare's selection: all values need not be sorted for one of them.)
function placed(values, place) {
  let first = 0;
  let last = values.length - 1;
  while (first < last) {
    const pivot = values[(first + last) >> 1];
    let low = first;
    let high = last;
    while (low <= high) {
      while (values[low] < pivot) low++;
      while (values[high] > pivot) high--;
      if (low > high) break;
      [values[low], values[high]] = [values[high], values[low]];
      low++;
      high--;
    }
    if (place <= high) last = high;
    else if (place >= low) first = low;
    else break;
  }
  return values[place];
}
