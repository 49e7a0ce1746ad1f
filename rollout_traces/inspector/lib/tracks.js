// The per-token arrays of a rollout, as the server packs them: base64 of little-endian numbers.

const KINDS = { u1: Uint8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

export function decode({ kind, data }) {
  const { buffer } = Uint8Array.fromBase64 ? Uint8Array.fromBase64(data) : slowly(data);
  return new KINDS[kind](buffer);
}

function slowly(data) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

export class Tokens {
  constructor(payload, raw) {
    this.raw = raw;
    this.n = payload.n;
    this.arrays = {};
    for (const [name, packed] of Object.entries(payload.arrays)) this.arrays[name] = decode(packed);
    this.trainVersion = payload.train_version;
    // One advantage for the whole rollout, as in GRPO: it holds at every token of the loss.
    if (payload.row_advantage !== undefined && !this.arrays.advantages) {
      this.arrays.advantages = Float32Array.from(this.arrays.loss_mask, inLoss =>
        inLoss ? payload.row_advantage : NaN,
      );
    }
  }

  has(name) {
    return name in this.arrays;
  }

  get(name) {
    return this.arrays[name];
  }

  text(i) {
    return this.raw.slice(this.arrays.starts[i], this.arrays.stops[i]);
  }
}
