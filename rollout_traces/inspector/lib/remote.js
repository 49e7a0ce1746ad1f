// Calling the server functions of a component.

export class RemoteError extends Error {
  constructor(payload) {
    super(payload.message);
    Object.assign(this, payload);
  }
}

export function remote(server) {
  return async (name, request = {}) => {
    let answer;
    try {
      answer = await server[name](request);
    } catch (error) {
      throw await unanswered(` (${error.message || error})`);
    }
    if (answer && answer.error) throw new RemoteError(answer.error);
    if (!answer || !("ok" in answer)) throw await unanswered("");
    return answer.ok;
  };
}

// Why no answer came: Gradio's client keeps what a refusal says to itself.
async function unanswered(why) {
  const root = (window.gradio_config?.root || document.baseURI).replace(/\/$/, "");
  const status = await fetch(`${root}/session`, { cache: "no-store" }).then(
    response => response.status,
    () => 0,
  );
  const message =
    status === 401
      ? "This session is over, the inspector asks for its token: open the address that `rollout-traces show` printed, or load this page again."
      : `The inspector does not answer${why}. Is it still running?`;
  return new RemoteError({ message, kind: "offline" });
}

const MOMENT = 150;

// Returns when a promise is settled, or after a moment: what is there by then is drawn at once, as a page that is drawn
// twice takes twice as long.
export function soon(promise) {
  return Promise.race([Promise.resolve(promise).catch(() => {}), new Promise(resolve => setTimeout(resolve, MOMENT))]);
}

// Only the newest of several overlapping calls may draw.
export function latest() {
  let turn = 0;
  return async (promise, draw, fail) => {
    const mine = ++turn;
    try {
      const value = await promise;
      if (mine === turn) return draw(value);
    } catch (error) {
      if (mine === turn) return fail(error);
    }
    return undefined;
  };
}
