// The leaderboard: a line for each CIL model and detector that is chosen.

const MOST = 8; // lines that can be ticked for the chart: as many colours as the eye tells apart
const KINDS = ["cil", "detector"];
const first = () => (phone.matches ? 10 : 50); // lines that are shown until all are asked for
const kindsOf = (view) => (view.ofModel ? ["cil"] : KINDS);

function lines(view) {
  const { group } = view;
  const found = [];
  for (const c of view.cils) {
    const accuracy = averageOf(view, "accuracy", c);
    const { name: cil, kept: megabytes } = group.cils[c]; // after the last step
    for (const d of view.ofModel ? [undefined] : view.detectors) {
      const line = { c, d, cil, detector: group.detectors[d]?.name ?? "", accuracy, megabytes };
      line.key = JSON.stringify([line.cil, line.detector]);
      for (const metric of view.columns) line[`metric:${metric}`] = averageOf(view, metric, c, d);
      line.value = line[`metric:${view.metric}`];
      line.few = line.value.seeds < view.most;
      if (line.value.mean !== null) found.push(line);
    }
  }
  // Averages that lack steps have no rank: early steps are easier. Nor have variants, which are no other methods,
  // and bounds, which are no continual learners.
  const method = ({ variant, bound }) => !variant && !bound;
  const ranked = ({ value, c, d }) =>
    isWhole(value, view, view.metric) && method(group.cils[c]) && (d === undefined || method(group.detectors[d]));
  const rank = ranksOf(found.filter(ranked).map((line) => line.value.mean), view.metric);
  for (const line of found) line.rank = ranked(line) ? rank.get(percent(line.value.mean)) : null;
  return sorted(found.filter(({ c, d, few }) => view.found(c, d) && (!few || view.asked(c, d))), view);
}
function sorted(found, view) {
  const all = columns(view);
  const by = all.find((column) => column.key === state.sort) || all[0];
  const up = state.sort && state.up ? state.up === "yes" : by.up;
  const order = (a, b) => {
    if (a.few !== b.few) return a.few - b.few; // averages over fewer seeds come last
    const [x, y] = [by.of(a), by.of(b)];
    if ((x === null) !== (y === null)) return (x === null) - (y === null); // missing values come last
    const difference = typeof x === "string" ? x.localeCompare(y) : x - y;
    return (up ? 1 : -1) * difference || (a.rank ?? 1e9) - (b.rank ?? 1e9)
      || (lower(view.metric) ? 1 : -1) * (a.value.mean - b.value.mean);
  };
  return { columns: all, by, up, found: found.sort(order) };
}
const columns = (view) => [
  {
    key: "rank", text: "#", up: true, of: (line) => line.rank,
    tip: "Rank among the methods that are chosen, with all seeds and steps. Values that look alike share a rank.",
    show: (line) => [line.rank ?? "–"], saved: (line) => String(line.rank ?? "–"),
  },
  ...kindsOf(view).map((key) => ({
    key, text: { cil: "CIL", detector: "Detector" }[key], up: true, names: true, of: (line) => line[key],
    show: (line) => methodName(key, line[key], false), saved: (line) => line[key],
  })),
  ...view.columns.map((metric) => ({
    key: `metric:${metric}`, text: arrow(metric), tip: definition(metric), up: lower(metric),
    of: (line) => line[`metric:${metric}`].mean,
    show: (line) => cell(line[`metric:${metric}`], metric === view.metric), // once a line is enough
    saved: (line) => line[`metric:${metric}`],
  })),
  ...(view.ofModel ? [] : [{
    key: "accuracy", text: arrow("accuracy"), up: false, tip: `Of the CIL model. ${definition("accuracy")}`,
    of: (line) => line.accuracy.mean,
    show: (line) => cell(line.accuracy, false), saved: (line) => line.accuracy,
  }]),
  ...(view.cils.some((c) => view.group.cils[c].kept !== null) ? [keeps] : []),
];
const keeps = {
  key: "kept", text: "MB↓", up: true,
  tip: "Millions of bytes that are kept after the last step: the model's tensors and the exemplars' pixels.",
  of: (line) => line.megabytes,
  show: (line) => [line.megabytes?.toFixed(1) ?? "–"], saved: (line) => line.megabytes?.toFixed(1) ?? "–",
};

function basis(view) {
  const many = view.seeds.length > 1 ? `, then over ${view.seeds.length} seeds ± standard deviation` : "";
  const steps = view.metric === "forgetting" ? "after the last step"
    : `mean over ${plural(needed(view, view.metric), "step")}`;
  return `${view.ofModel ? "" : `${setsText()} · `}${steps}${many} · percent`;
}
const oneSeed = (count) =>
  count === 1 ? `One seed: differences under ${data.noise} points mean little.` : null;
function showBoard(view, board) {
  const head = board.columns.map((column) => {
    const now = column.key === board.by.key;
    const turn = () => {
      state.up = now ? (board.up ? "no" : "yes") : column.up ? "yes" : "no";
      state.sort = column.key;
      show();
      $("board").querySelector(`th[data-key="${CSS.escape(column.key)}"] button`).focus();
    };
    return el(
      "th",
      {
        scope: "col", "data-key": column.key, class: column.names ? null : "number",
        "aria-sort": now ? (board.up ? "ascending" : "descending") : null,
      },
      el("button", { type: "button", onclick: turn, "data-tip": column.tip }, column.text),
    );
  });
  const some = board.found.filter(({ key }, i) => state.all || i < first() || state.on.includes(key));
  const body = some.map((line) => {
    const ticked = state.on.includes(line.key);
    const names = kindsOf(view).map((kind) => titled(kind, line[kind])).join(", ");
    const tick = el("input", {
      type: "checkbox", checked: ticked, "aria-label": `${names}: on the chart`,
      disabled: !ticked && state.on.length >= MOST,
      onchange: (event) => {
        const others = state.on.filter((key) => key !== line.key);
        state.on = event.target.checked ? [...others, line.key] : others;
        show();
        const again = [...$("board").tBodies[0].rows].find((row) => row.dataset.key === line.key);
        again?.querySelector("input").focus();
      },
    });
    const cells = board.columns.map((column) =>
      el("td", { class: column.names ? column.key : "number", "data-head": column.text }, column.show(line)),
    );
    const look = [ticked ? "shown" : "", line.few ? "few" : ""].join(" ");
    return el("tr", { "data-key": line.key, class: look }, el("td", {}, tick), cells);
  });
  const ticks = el("th", { scope: "col" }, el("span", { class: "unseen" }, "on the chart"));
  $("board").tHead.replaceChildren(el("tr", {}, ticks, head));
  $("board").tBodies[0].replaceChildren(...body);
  $("board").className = view.ofModel ? "models" : "";
  const all = plural(view.group.baselines[view.metric], view.ofModel ? "CIL model" : "combination");
  $("count").textContent = `${board.found.length} of ${all} · ${basis(view)}`; // not every pair is run
  $("all").hidden = board.found.length <= first();
  $("all").textContent = state.all ? `Show the first ${first()}` : `Show all ${board.found.length}`;
  const bounds = unique(board.found.filter(({ c }) => view.group.cils[c].bound).map(({ cil }) => cil)).join(", ");
  const bound = bounds && `Bounds of accuracy, which keep all images, have no rank: ${bounds}.`;
  const notes = [oneSeed(view.seeds.length), bound, ...view.group.notes].filter(Boolean);
  const { missing } = view.group;
  $("notes").replaceChildren(...[...missing, ...notes].map((text) => el("li", {}, text)));
  $("board-saving").replaceChildren(saving(() => ({
    name: `leaderboard-${view.group.benchmark}-k${view.group.k}`,
    title: `${view.group.benchmark}, ${view.group.k} classes per step: ${label(view.metric)}`,
    columns: [...board.columns.map((column) => ({ text: column.text, label: column.names })), { text: "seeds" }],
    lines: board.found.map((line) =>
      [...board.columns.map((column) => column.saved(line)), seedsText(view, [line.value])]),
    notes: [`${basis(view)}.`, ...notes, definition(view.metric)],
    missing,
  })));
}
