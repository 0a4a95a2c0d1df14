// The selection. The address keeps it, so that a reload and a link show it again.

const SINGLE = ["benchmark", "k", "model", "metric", "ood", "seed"];
const SEVERAL = { cil: "CIL models", detector: "Detectors" }; // none chosen is all
const WORDS = [...SINGLE, "find", "all", "variants", "few", "sort", "up", "by", "accuracy", "theme"];
const LISTS = [...Object.keys(SEVERAL), "on", "folded"]; // lines on the chart, families that are folded away
const state = {};
function load() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of WORDS) state[name] = given.get(name) || "";
  for (const name of LISTS) state[name] = given.getAll(name).filter(Boolean);
}
function keep() {
  const written = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    for (const one of [value].flat()) if (one) written.append(name, one);
  }
  history.replaceState(null, "", `#${written}`);
}

const filters = $("filters");
function options(name, choices, first = choices[0]?.[0]) {
  const select = filters.elements[name];
  const values = choices.map(([value]) => value);
  if (!values.includes(state[name])) state[name] = first ?? "";
  select.replaceChildren(...choices.map(([value, text]) => el("option", { value }, text)));
  select.value = state[name];
  select.disabled = values.length < 2;
}

// A list of boxes to tick, with a field to search it. Choices are { head, items: [[value, text]], whole }, where
// `whole` stands for all of a part. `all` is the number of items that are shown where none is chosen.
const lists = new Map();
function choiceList(name) {
  const search = el("input", {
    type: "search", placeholder: "Search", "aria-label": `Search ${SEVERAL[name].toLowerCase()}`,
    autocomplete: "off",
  });
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    for (const item of parts.querySelectorAll("label")) {
      item.hidden = !`${item.title} ${item.textContent}`.toLowerCase().includes(wanted);
    }
    for (const part of parts.children) part.hidden = !part.querySelector("label:not([hidden])");
  });
  const all = el("button", { type: "button" }, "Show all");
  all.addEventListener("click", () => {
    state[name] = [];
    show();
  });
  const parts = el("div", { class: "parts" });
  const chosen = el("span", { class: "chosen" });
  const box = el(
    "details", { name: "choice", "data-name": name },
    el("summary", {}, el("span", { class: "caption" }, SEVERAL[name]), chosen),
    el("div", { class: "panel" }, el("div", { class: "panel-head" }, search, all), parts),
  );
  filters.insertBefore(box, $("variants")); // it comes last, for the Tab key too
  return { box, parts, chosen, made: "" };
}
function several(name, choices, all) {
  if (!lists.has(name)) lists.set(name, choiceList(name));
  const list = lists.get(name);
  const items = choices.flatMap((part) => part.items);
  const wholes = choices.filter((part) => part.whole);
  const known = [...wholes.map((part) => part.whole), ...items.map(([value]) => value)];
  state[name] = state[name].filter((value) => known.includes(value));
  list.box.hidden = items.length < 2;
  const key = JSON.stringify(choices);
  if (key !== list.made) { // else the search and the focus stay
    list.made = key;
    const box = (value, text, title = null) =>
      el("label", { title }, el("input", { type: "checkbox", name, value }), el("span", {}, text));
    list.parts.replaceChildren(...choices.filter((part) => part.items.length).map((part) =>
      el(
        "fieldset", {}, el("legend", {}, part.head || SEVERAL[name]),
        wholes.includes(part) ? box(part.whole, `all ${part.head}`) : null,
        part.items.map(([value, text]) => box(value, text, value === text ? null : value)),
      ),
    ));
  }
  for (const box of list.parts.querySelectorAll("input")) box.checked = state[name].includes(box.value);
  const text = new Map([...items, ...wholes.map((part) => [part.whole, part.head])]);
  const few = state[name].length < 3;
  list.chosen.textContent = !state[name].length ? `all (${all})`
    : few ? state[name].map((value) => text.get(value)).join(", ")
      : `${state[name].length} of ${items.length}`;
}
document.addEventListener("change", ({ target }) => {
  if (target.form !== filters) return; // some of its fields are beside it
  if (target.name in SEVERAL) {
    const others = state[target.name].filter((value) => value !== target.value);
    state[target.name] = target.checked ? [...others, target.value] : others;
  } else if (target.name === "model") [state.model, gone] = [target.value, null];
  else if (["variants", "few"].includes(target.name)) state[target.name] = target.checked ? "yes" : "";
  else if (target.name) state[target.name] = target.value;
  show();
});
filters.elements.find.addEventListener("input", ({ target }) => {
  state.find = target.value;
  show();
});
filters.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("keydown", (event) => {
  const open = event.key === "Escape" && event.target.closest("details[open]");
  if (!open) return;
  open.open = false;
  open.querySelector("summary").focus();
});
document.addEventListener("pointerdown", ({ target }) => {
  for (const open of filters.querySelectorAll("details[open]")) if (!open.contains(target)) open.open = false;
});

// A variant is a method under other values (ber@nter). It is folded away unless it is asked for, or its
// method has no other line.
const own = (name) => name.split("@")[0];
const foldable = (list) => list.filter((one) => one.variant && list.some((o) => o.name === own(one.name)));

// CIL methods with values of some detector, or all where none has any.
function measured(group) {
  const parts = Object.values(group.averages).flatMap((places) => Object.values(places));
  const keys = unique(parts.flatMap((seeds) => Object.keys(seeds[""] ?? {}))).filter((key) => !key.endsWith("\n"));
  const names = new Set(keys.map((key) => key.split("\n")[0]));
  const found = group.cils.map((c) => c.name);
  return names.size ? found.filter((name) => names.has(name)) : found;
}
let gone = null; // the chosen CIL method that a group does not have, until another is chosen

// Resolve the selection to a group of runs, and to models, detectors, an evaluation set and seeds of it.
function choose() {
  const same = (values, kind) => values.map(String).map((value) => [value, titled(kind, value)]);
  const [first, itsK] = data.opened ?? []; // of a board: the last submission's track
  options("benchmark", same(unique(data.groups.map((g) => g.benchmark))), first);
  const here = data.groups.filter((g) => g.benchmark === state.benchmark);
  const whole = here.find((g) => !g.missing.length) ?? here[0]; // nothing in it has a rank while steps are missing
  options("k", same(here.map((g) => g.k)), String(first === state.benchmark ? itsK : whole.k));
  const group = here.find((g) => String(g.k) === state.k);
  const [asked, models] = [state.model, measured(group)];
  options("model", same(models, "cil"), bestModel(group));
  if (asked && !models.includes(asked)) gone = { name: asked, group };
  const metrics = Object.keys(data.metrics).filter((m) => m in group.baselines);
  options("metric", metrics.map((m) => [m, label(m)]));
  const { shifted, model: ofModel = false } = data.metrics[state.metric];
  options("ood", shifted ? group.shifted : group.places);
  options("seed", [["", `all (${group.seeds.length})`], ...(group.seeds.length > 1 ? same(group.seeds) : [])]);
  const parts = (list, key, kind) => unique(list.map((one) => one[key])).map((head) => ({
    head, whole: `${key}:${head}`,
    items: same(list.filter((one) => one[key] === head).map((o) => o.name), kind),
  }));
  const folds = [...foldable(group.cils), ...foldable(group.detectors)];
  const unfolded = (one) => state.variants || !folds.includes(one);
  const all = [{ head: "", items: same(group.cils.map((c) => c.name), "cil") }];
  several("cil", all, group.cils.filter(unfolded).length);
  several("detector", parts(group.detectors, "family", "detector"), group.detectors.filter(unfolded).length);
  $("variants").hidden = !folds.length;
  filters.elements.variants.checked = Boolean(state.variants);
  $("variants-text").textContent = `with ${plural(folds.length, "variant")} (@)`;

  if (filters.elements.find.value !== state.find) filters.elements.find.value = state.find;
  const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
  const both = (kind, { name }) => `${name} ${titled(kind, name)} `;
  const named = (c, d) => (both("cil", group.cils[c]) + both("detector", group.detectors[d])).toLowerCase();

  const indices = (list, test) => list.map((_, i) => i).filter((i) => test(list[i]));
  const shown = (name, key, counts) => (one) =>
    state[name].includes(String(one.name ?? one))
    || (counts(one) && (!state[name].length || state[name].includes(`${key}:${one[key]}`)));
  const view = {
    group,
    ofModel,
    metric: state.metric,
    place: state.ood,
    seed: state.seed,
    seeds: state.seed ? [Number(state.seed)] : group.seeds,
    found: (c, d) => words.every((word) => named(c, d).includes(word)), // places are among all chosen lines
    // On a phone, one CIL model at a time.
    cils: indices(group.cils, phone.matches && !ofModel ? (one) => one.name === state.model
      : shown("cil", "", unfolded)),
    detectors: indices(group.detectors, shown("detector", "family", unfolded)),
    columns: unique([state.metric, ...(shifted || ofModel ? metrics : data.main)])
      .filter((m) => metrics.includes(m) && data.metrics[m].shifted === shifted
        && Boolean(data.metrics[m].model) === ofModel),
    asked: (c, d) => state.few || state.cil.includes(group.cils[c].name)
      || state.detector.includes(group.detectors[d]?.name),
  };
  // Averages over fewer seeds than others have no rank, and are shown where they are asked for.
  const counts = view.cils.flatMap((c) => (ofModel ? [undefined] : view.detectors)
    .map((d) => averageOf(view, view.metric, c, d).seeds));
  view.most = counts.reduce((most, one) => Math.max(most, one), 0);
  const few = counts.filter((count) => count && count < view.most).length;
  $("few").hidden = !few;
  filters.elements.few.checked = Boolean(state.few);
  $("few-text").textContent = `with ${few} on fewer seeds`;
  return view;
}
const setsText = () => filters.elements.ood.selectedOptions[0]?.text ?? "";
