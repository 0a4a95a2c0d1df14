// Look up averages, which Python has computed by metric, evaluation set and seed, and compare them as shown.

// Steps that a metric has at a place: after the last step there are no later classes.
const needed = ({ group, place }, metric) =>
  (group.needed[metric] ?? group.planned) - (place === "future" && metric in group.needed ? 1 : 0);
const NONE = { mean: null, std: null, steps: 0, seeds: 0, lacking: "", points: [] };
// The average of a detector on a CIL model; without a detector, of the model itself.
function averageOf(view, metric, c, d = "") {
  const { group } = view;
  const places = group.averages[metric] ?? {};
  const names = `${group.cils[c].name}\n${group.detectors[d]?.name ?? ""}`;
  const found = (places[view.place] ?? places[""])?.[view.seed]?.[names]; // "": the same on all sets
  if (!found) return { ...NONE, points: group.steps.map(() => NONE) };
  const [mean, std, steps, seeds, means, deviations] = found;
  const all = needed(view, metric);
  const lacking = steps < all ? `${steps}/${all} steps`
    : seeds < view.seeds.length ? `${seeds}/${view.seeds.length} seeds` : "";
  const points = means.map((m, t) => ({ mean: m, std: deviations?.[t] ?? null }));
  return { mean, std, steps, seeds, lacking, points };
}
const lower = (metric) => data.metrics[metric].lower;
const label = (metric) => data.metrics[metric].label;
const definition = (metric) => `${label(metric)}: ${data.metrics[metric].definition}`;
const arrow = (metric) => label(metric) + (lower(metric) ? "↓" : "↑"); // which way is better
const percent = (value) => (value === null ? "–" : value.toFixed(2));
const isWhole = (found, view, metric) =>
  found.mean !== null && found.steps >= needed(view, metric) && found.seeds >= view.most;
const seedsText = (view, ones) => {
  const counts = ones.map((one) => one.seeds).filter(Boolean);
  const ends = unique([Math.min(...counts), Math.max(...counts)]);
  return counts.length ? `${ends.join(" to ")} of ${view.group.seeds.length}` : "";
};
// Values that look alike share a place, after which the next one comes, or a rank: 1, 1, 2 are places, 1, 1, 3 ranks.
const ordered = (values, metric) => values.map(percent).sort((a, b) => (lower(metric) ? a - b : b - a));
const placesOf = (values, metric) =>
  new Map(unique(ordered(values, metric)).map((text, i) => [text, i + 1]));
function ranksOf(values, metric) {
  const order = ordered(values, metric);
  return new Map(order.map((text) => [text, order.indexOf(text) + 1]));
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
