// Draws every position of a game: tools answer with {"board": ["X..", ".O.", "..."]}.

const CELL = 34;
const SVG = "http://www.w3.org/2000/svg";

export function draw(root, { messages, metadata }) {
  const moves = messages.flatMap(message => message.tool_calls || []).map(call => call.function.arguments);
  const boards = messages
    .filter(message => message.role === "tool")
    .flatMap(message => (parsed(message.content)?.board ? [parsed(message.content).board] : []));
  root.style.cssText = "display: flex; flex-wrap: wrap; gap: 18px; margin: 14px";
  root.replaceChildren(...boards.map((board, at) => position(board, boards[at - 1], `${at + 1}. ${text(moves[at])}`)));
  const end = document.createElement("p");
  end.textContent = `reward ${metadata.reward}`;
  root.append(end);
}

const text = move => (typeof move === "string" ? move : JSON.stringify(move ?? {}));

function parsed(content) {
  try {
    return JSON.parse(content);
  } catch {
    return null;
  }
}

function position(board, before, said) {
  const figure = document.createElement("figure");
  figure.style.margin = "0";
  const caption = document.createElement("figcaption");
  caption.style.cssText = "font: 12px ui-monospace, monospace; margin-bottom: 4px";
  caption.textContent = said;
  const svg = node("svg", { width: board[0].length * CELL + 2, height: board.length * CELL + 2 });
  board.forEach((row, y) =>
    [...row].forEach((sign, x) => {
      const isNew = (before?.[y]?.[x] ?? ".") !== sign;
      const at = { x: x * CELL + 1, y: y * CELL + 1, width: CELL, height: CELL };
      svg.append(node("rect", { ...at, fill: isNew ? "#ffd16688" : "none", stroke: "#888" }));
      if (sign === ".") return;
      const letter = node("text", {
        x: (x + 0.5) * CELL,
        y: (y + 0.7) * CELL,
        "text-anchor": "middle",
        fill: "currentColor",
        "font-size": 20,
      });
      letter.textContent = sign;
      svg.append(letter);
    }),
  );
  figure.append(caption, svg);
  return figure;
}

function node(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
