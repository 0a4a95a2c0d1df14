// Averages, in the tables' order: over datasets, then over steps, then over seeds.

const known = (values) => values.filter((value) => value !== null);
const mean = (values) => (values.length ? values.reduce((sum, v) => sum + v, 0) / values.length : null);
function spread(values) {
  const m = mean(values);
  if (values.length < 2) return { mean: m, std: null, count: values.length };
  const squares = values.reduce((sum, v) => sum + (v - m) ** 2, 0);
  return { mean: m, std: Math.sqrt(squares / (values.length - 1)), count: values.length };
}

// Percent per step of one run and detector: the mean over the chosen OOD sets; null where there is none.
function steps(group, metric, c, d, s, oods) {
  const { sets, at, blocks } = group.values[metric];
  const block = blocks[at[(c * group.detectors.length + d) * group.seeds.length + s]];
  const chosen = known(oods.map((o) => sets[o]));
  return group.steps.map((_, t) => {
    const found = known(chosen.map((place) => block[(t * block.length) / group.steps.length + place]));
    return found.length ? mean(found) / data.scale : null;
  });
}
const accuracies = (group, c, s) =>
  group.steps.map((_, t) => {
    const value = group.accuracy[c * group.seeds.length + s][t];
    return value === null ? null : value / data.scale;
  });

const perSeed = (view, of) => view.seeds.map(of);
// The seeds that have the most steps, as in the tables: with fewer of the later, harder ones none compares.
function farthest(series) {
  const steps = Math.max(...series.map((values) => known(values).length));
  return steps ? series.filter((values) => known(values).length === steps) : [];
}
const curve = (series) =>
  series[0].map((_, t) => spread(known(farthest(series).map((values) => values[t]))));
function average(series, all) {
  const used = farthest(series).map(known);
  const steps = used.length ? used[0].length : 0;
  return { ...spread(used.map(mean)), steps, lacking: steps < all ? `${steps}/${all} steps`
    : used.length < series.length ? `${used.length}/${series.length} seeds` : "" };
}
// The average of a detector on a CIL model; leaderboard and matrix share it.
function averageOf(view, metric, c, d) {
  const key = `${metric} ${c} ${d}`;
  if (!view.averages.has(key)) {
    const series = perSeed(view, (s) => steps(view.group, metric, c, d, s, view.oods));
    view.averages.set(key, average(series, view.group.needed[metric]));
  }
  return view.averages.get(key);
}
const accuracyOf = (view, c) =>
  average(perSeed(view, (s) => accuracies(view.group, c, s)), view.group.planned);
const lower = (metric) => data.metrics[metric].lower;
const label = (metric) => data.metrics[metric].label;
const definition = (metric) => `${label(metric)}: ${data.metrics[metric].definition}`;
const arrow = (metric) => label(metric) + (lower(metric) ? "↓" : "↑"); // which way is better
const percent = (value) => (value === null ? "–" : value.toFixed(2));
const isWhole = (found, view, metric) => found.mean !== null && found.steps >= view.group.needed[metric];
// Values are compared as they are shown, as in the tables. Those that look alike share a place, after which the
// next one comes, or the mean of their ranks: 1, 1, 2 are places, 1.5, 1.5, 3 ranks.
const ordered = (values, metric) => values.map(percent).sort((a, b) => (lower(metric) ? a - b : b - a));
const places = (values, metric) =>
  new Map(unique(ordered(values, metric)).map((text, i) => [text, i + 1]));
function ranks(values, metric) {
  const order = ordered(values, metric);
  return new Map(order.map((text) => [text, (order.indexOf(text) + order.lastIndexOf(text)) / 2 + 1]));
}
function cell(found, marked = true) {
  if (found.mean === null) return ["–"];
  const parts = [percent(found.mean)];
  if (found.std !== null) parts.push(el("span", { class: "deviation" }, ` ± ${percent(found.std)}`));
  if (found.lacking && marked) {
    parts.push(el("span", { class: "partial", title: "does not compare yet" }, ` ${found.lacking}`));
  }
  return parts;
}
