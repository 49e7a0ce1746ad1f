// What the pages ask, answered from the files of a site in the shape of the server's answers.

import { compiled, sortKeys, sorted } from "./filter.js";
import { occurs, phraseOf, phrases, snippet, words as wordsOf } from "./search.js";

const PAGE_ROWS = 100;
const files = new Map();

// A file of the site's `data`: gzipped JSON, unless the web server unpacked it on its way.
export function read(name) {
  if (!files.has(name)) files.set(name, fetched(name));
  return files.get(name);
}

async function fetched(name) {
  const response = await fetch(`data/${name}.gz`);
  if (!response.ok) throw new Error(`${name} of this site could not be read (${response.status}).`);
  const bytes = new Uint8Array(await response.arrayBuffer());
  if (bytes[0] !== 0x1f || bytes[1] !== 0x8b) return JSON.parse(new TextDecoder().decode(bytes));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

// about: what `about.gz` holds. The functions of the pages, by name.
export function answers(about) {
  const folder = ({ split }) => about.splits.indexOf(split);
  const listOf = async asked => indexed(await read(`${folder(asked)}/list`));
  const functions = {
    run_curves: asked => read(`${folder(asked)}/run`),
    run_report: asked => read(`${folder(asked)}/run`),
    explain: asked =>
      about.explained[folder(asked)].includes(asked.step)
        ? read(`${folder(asked)}/explain-${asked.step}`)
        : refused(
            `What changed at step ${asked.step} is not in this site; it holds steps ${about.explained[folder(asked)].join(", ") || "none"}.`,
          ),
    metrics: async asked => chosen(await read(`${folder(asked)}/metrics`), asked.names || []),
    samples: async asked => samples(await listOf(asked), asked, () => read(`${folder(asked)}/texts`)),
    rollout: async asked => opened(await listOf(asked), asked, at => read(`${folder(asked)}/rollouts-${at}`)),
    step_means: async asked => around((await listOf(asked)).means[asked.step]),
    group_pushes: async asked => around(await pushes(await listOf(asked), asked)),
    image: async asked => read(`${about.images[asked.id]}-${asked.number}`),
  };
  const pushes = async (list, { split, step, group }) => {
    const row = list.cards.step.findIndex((at, i) => at === step && list.cards.group[i] === group);
    return row < 0
      ? null
      : (await read(`${folder({ split })}/rollouts-${chunkOf(list, row)}`)).pushes[`${step} ${group}`];
  };
  return new Proxy(functions, {
    get: (all, name) => asked =>
      (all[name] || (() => refused("This is computed where the run is, not in this site.")))(asked).then(
        ok => ({ ok }),
        error => ({ error: { ...error, message: error.message } }),
      ),
  });
}

const refused = message => Promise.reject(new Error(message));
const around = found => found || refused("What is around this rollout is not in this site.");

function chosen(all, names) {
  const shown = names.filter(name => all.series[name]);
  const wanted = shown.length ? shown : all.shown;
  return { ...all, shown: wanted, series: Object.fromEntries(wanted.map(name => [name, all.series[name]])) };
}

function indexed(list) {
  list.rows ??= Array.from(list.cards.id, (_, row) => row);
  list.where ??= { columns: list.columns, flags: list.flags, texts: () => list.texts };
  return list;
}

const card = ({ cards }, row) => Object.fromEntries(Object.entries(cards).map(([name, values]) => [name, values[row]]));
const scalar = value => (Array.isArray(value) ? null : value);
const chunkOf = ({ chunks }, row) => chunks.findLastIndex(first => first <= row);

async function samples(list, asked, readTexts) {
  const everywhere = asked.scope === "all";
  const filter = compiled(asked.where, list.where);
  const words = phrases(asked.text);
  const looked = [...words.map(word => () => word), ...filter.looked];
  if ((words.length || filter.readsTexts) && !list.texts) list.texts = textsOf(await readTexts());
  const wanted = words.map(phraseOf);
  const inStep = row => everywhere || list.cards.step[row] === asked.step;
  const found = list.rows.filter(
    row => inStep(row) && (!filter.test || filter.test(row)) && wanted.every(phrase => occurs(phrase, list.texts, row)),
  );
  const shown = row =>
    looked.length ? { ...card(list, row), snippet: snippet(list.texts.text(row), looked) } : card(list, row);
  const of = everywhere ? list.population : list.steps[asked.step];
  const common = { ...list.common, ...of, step: asked.step, scope: everywhere ? "all" : "step" };
  if (everywhere || asked.sort) {
    const order = asked.sort ? sortKeys(asked.sort, list.where) : filter.order;
    const from = Number(asked.after || 0);
    const page = sorted(found, order, list.arrived).slice(from, from + PAGE_ROWS);
    const next = from + PAGE_ROWS < found.length ? String(from + PAGE_ROWS) : null;
    return {
      ...common,
      groups: null,
      samples: page.map(row => ({
        ...shown(row),
        sorted_by: scalar(asked.sort && order[0].name ? order[0].at(row) : null),
      })),
      n_matched: found.length,
      next,
    };
  }
  const filtered = Boolean(asked.where || asked.text);
  const kept = new Set(found);
  const groups = of.groups
    .map(group => ({ ...group, samples: group.rows.filter(row => kept.has(row)).map(shown) }))
    .filter(group => !filtered || group.samples.length);
  return { ...common, groups, samples: null, n_matched: found.length, next: null };
}

// texts: of each row [all of it, prompt, reply].
function textsOf(texts) {
  const known = [];
  const [text, prompt, reply] = [0, 1, 2].map(part => row => texts[row][part]);
  return { text, prompt, reply, words: row => (known[row] ??= wordsOf(texts[row][0])) };
}

async function opened(list, asked, readChunk) {
  const same = (name, row) => asked[name] == null || String(list.cards[name][row]) === String(asked[name]);
  const row = asked.id
    ? list.cards.id.indexOf(asked.id)
    : list.rows.findIndex(at => ["step", "group", "sample"].every(name => same(name, at)));
  if (row < 0) return refused("This rollout is not in this site: pick another on the left.");
  const at = chunkOf(list, row);
  return (await readChunk(at)).rollouts[row - list.chunks[at]];
}
