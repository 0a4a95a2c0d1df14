"use strict";
// The page's behaviour. Names come from outside: they become text nodes and attribute values, never markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SCALE = data.scale; // values are whole numbers of this fraction of a percent
  const LINES = 6; // curves that are shown where none is ticked
  const MOST = 8; // curves that can be ticked: as many colours as the eye tells apart
  const $ = (id) => document.getElementById(id);

  // --- elements ------------------------------------------------------------------------------------

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }
  const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const draw = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  // Edges of a box behind which there is more are shaded: a phone shows no scroll bar.
  const sizes = new ResizeObserver((changes) => {
    for (const { target } of changes) edges(target.closest(".scroll"));
  });
  function edges(box) {
    const more = {
      left: box.scrollLeft > 1, right: box.scrollLeft + box.clientWidth < box.scrollWidth - 1,
      above: box.scrollTop > 1, below: box.scrollTop + box.clientHeight < box.scrollHeight - 1,
    };
    box.dataset.more = Object.keys(more).filter((side) => more[side]).join(" ");
  }
  function scrolling(box) {
    box.addEventListener("scroll", () => edges(box), { passive: true });
    for (const part of [box, ...box.children]) sizes.observe(part);
    return box;
  }

  // --- averages, in the tables' order: over datasets, then over steps, then over seeds ----------------

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
    const block = (group.values[metric] || [])[(c * group.detectors.length + d) * group.seeds.length + s];
    const width = group.oods.length;
    return group.steps.map((_, t) => {
      if (!block) return null;
      const found = known(oods.map((o) => block[t * width + o]));
      return found.length ? mean(found) / SCALE : null;
    });
  }
  const accuracies = (group, c, s) =>
    group.steps.map((_, t) => {
      const value = (group.accuracy[c * group.seeds.length + s] || [])[t];
      return value === null || value === undefined ? null : value / SCALE;
    });

  const perSeed = (view, of) => view.seeds.map(of);
  const curve = (series) => series[0].map((_, t) => spread(known(series.map((values) => values[t]))));
  // Of the seeds that have all planned steps, as in the tables; where none has, of what there is.
  function average(series, all) {
    const begun = series.map(known).filter((values) => values.length);
    const whole = begun.filter((values) => values.length >= all);
    const used = whole.length ? whole : begun;
    const steps = used.length ? Math.min(...used.map((values) => values.length)) : 0;
    return { ...spread(used.map(mean)), steps, lacking: steps < all ? `${steps}/${all} steps`
      : used.length < series.length ? `${used.length}/${series.length} seeds` : "" };
  }
  const lower = (metric) => data.metrics[metric].lower;
  const label = (metric) => data.metrics[metric].label;
  const arrow = (metric) => label(metric) + (lower(metric) ? "↓" : "↑"); // which way is better
  const percent = (value) => (value === null ? "–" : value.toFixed(2));
  const isWhole = (found, view, metric) => found.mean !== null && found.steps >= view.group.needed[metric];
  // The places of values, compared as they are shown, as in the tables: what looks alike shares one.
  function places(values, metric) {
    const order = unique(values.map(percent)).sort((a, b) => (lower(metric) ? a - b : b - a));
    return new Map(order.map((text, i) => [text, i + 1]));
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

  // --- the selection, kept in the address so that a reload and a link keep it ------------------------

  const FIELDS = ["benchmark", "k", "cil", "detector", "ood", "metric", "seed"];
  const state = { sort: "", up: "", accuracy: "", theme: "", on: [] };
  for (const name of FIELDS) state[name] = "";
  function load() {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const name of [...FIELDS, "sort", "up", "accuracy", "theme"]) state[name] = given.get(name) || "";
    state.on = given.getAll("on");
  }
  function keep() {
    const written = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) {
      for (const one of Array.isArray(value) ? value : [value]) if (one) written.append(name, one);
    }
    history.replaceState(null, "", `#${written}`);
  }

  const filters = $("filters");
  function options(name, choices) {
    const select = filters.elements[name];
    const groups = choices.map(([head, items]) => {
      const made = items.map(([value, text]) => el("option", { value }, text));
      return head ? el("optgroup", { label: head }, made) : made;
    });
    select.replaceChildren(...groups.flat());
    const values = choices.flatMap(([, items]) => items.map(([value]) => value));
    if (!values.includes(state[name])) state[name] = values[0] ?? "";
    select.value = state[name];
    select.disabled = values.length < 2;
  }
  const unique = (values) => [...new Set(values)];
  const same = (values) => values.map((value) => [String(value), String(value)]);

  // What the selection means: the group of runs, and which models, detectors, OOD sets and seeds of it.
  function choose() {
    options("benchmark", [["", same(unique(data.groups.map((g) => g.benchmark)))]]);
    const here = data.groups.filter((g) => g.benchmark === state.benchmark);
    options("k", [["", same(here.map((g) => g.k))]]);
    const group = here.find((g) => String(g.k) === state.k);
    options("cil", [["", [["", "all"], ...same(group.cils)]]]);
    const families = unique(group.detectors.map((d) => d.family)).filter(Boolean);
    options("detector", [
      ["", [["", "all"]]],
      ["family", families.length > 1 ? families.map((f) => [`family:${f}`, f]) : []],
      ["detector", same(group.detectors.map((d) => d.name))],
    ].filter(([, items]) => items.length));
    const distances = unique(group.oods.map((o) => o.distance)).filter(Boolean);
    options("ood", [
      ["", [["", "all"], ...(distances.length > 1 ? distances.map((d) => [`distance:${d}`, d]) : [])]],
      ["dataset", same(group.oods.map((o) => o.name))],
    ]);
    const metrics = Object.keys(data.metrics).filter((m) => group.values[m]);
    options("metric", [["", metrics.map((m) => [m, label(m)])]]);
    options("seed", [["", [["", "all"], ...same(group.seeds)]]]);
    const indices = (list, test) => list.map((_, i) => i).filter((i) => test(list[i]));
    return {
      group,
      metric: state.metric,
      cils: indices(group.cils, (name) => !state.cil || name === state.cil),
      detectors: indices(
        group.detectors,
        (d) => !state.detector || d.name === state.detector || `family:${d.family}` === state.detector,
      ),
      oods: indices(
        group.oods,
        (o) => o.name === state.ood || (o.shared && (!state.ood || `distance:${o.distance}` === state.ood)),
      ),
      seeds: indices(group.seeds, (seed) => !state.seed || String(seed) === state.seed),
      columns: unique([state.metric, "auc", "fpr", "ap"]).filter((m) => group.values[m]),
    };
  }
  const oodText = () => (state.ood ? state.ood.replace(/^distance:(.*)$/, "$1 OOD") : "all OOD sets");

  // --- leaderboard -----------------------------------------------------------------------------------

  function lines(view) {
    const { group } = view;
    const found = [];
    for (const c of view.cils) {
      const accuracy = average(perSeed(view, (s) => accuracies(group, c, s)), group.planned);
      for (const d of view.detectors) {
        const line = { c, d, cil: group.cils[c], detector: group.detectors[d].name, accuracy };
        line.key = JSON.stringify([line.cil, line.detector]);
        for (const metric of view.columns) {
          const series = perSeed(view, (s) => steps(group, metric, c, d, s, view.oods));
          line[`metric:${metric}`] = average(series, group.needed[metric]);
        }
        line.value = line[`metric:${view.metric}`];
        if (line.value.mean !== null) found.push(line);
      }
    }
    // What lacks steps has no rank: early steps are the easy ones. Nor has a variant: it is no other method.
    const ranked = (line) => isWhole(line.value, view, view.metric) && !group.detectors[line.d].variant;
    const place = places(found.filter(ranked).map((line) => line.value.mean), view.metric);
    for (const line of found) line.rank = ranked(line) ? place.get(percent(line.value.mean)) : null;
    return sorted(found, view);
  }
  function sorted(found, view) {
    const by = columns(view).find((column) => column.key === state.sort) || columns(view)[0];
    const up = state.sort && state.up ? state.up === "yes" : by.up;
    const order = (a, b) => {
      const [x, y] = [by.of(a), by.of(b)];
      if (x === null || y === null) return (x === null) - (y === null); // what is missing comes last
      const difference = typeof x === "string" ? x.localeCompare(y) : x - y;
      return (up ? 1 : -1) * difference || (a.rank ?? 1e9) - (b.rank ?? 1e9);
    };
    return { by, up, found: found.sort(order) };
  }
  const columns = (view) => [
    { key: "rank", text: "#", up: true, of: (line) => line.rank, show: (line) => [line.rank ?? "–"] },
    { key: "cil", text: "CIL", up: true, names: true, of: (line) => line.cil, show: (line) => [line.cil] },
    {
      key: "detector", text: "Detector", up: true, names: true,
      of: (line) => line.detector, show: (line) => [line.detector],
    },
    ...view.columns.map((metric) => ({
      key: `metric:${metric}`, text: arrow(metric), up: lower(metric),
      of: (line) => line[`metric:${metric}`].mean,
      show: (line) => cell(line[`metric:${metric}`], metric === view.metric), // once a line is enough
    })),
    {
      key: "accuracy", text: "Accuracy↑", up: false, of: (line) => line.accuracy.mean,
      show: (line) => cell(line.accuracy, false),
    },
  ];
  function showBoard(view, board) {
    const head = columns(view).map((column) => {
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
        el("button", { type: "button", onclick: turn }, column.text),
      );
    });
    const body = board.found.map((line) => {
      const ticked = state.on.includes(line.key);
      const tick = el("input", {
        type: "checkbox", checked: ticked, "aria-label": `${line.cil}, ${line.detector}: on the chart`,
        disabled: !ticked && state.on.length >= MOST,
        onchange: (event) => {
          const others = state.on.filter((key) => key !== line.key);
          state.on = event.target.checked ? [...others, line.key] : others;
          show();
          const again = [...$("board").tBodies[0].rows].find((row) => row.dataset.key === line.key);
          again?.querySelector("input").focus();
        },
      });
      const cells = columns(view).map((column) =>
        el("td", { class: column.names ? null : "number" }, column.show(line)),
      );
      return el("tr", { "data-key": line.key, class: ticked ? "shown" : null }, el("td", {}, tick), cells);
    });
    const first = el("th", { scope: "col", "aria-label": "on the chart" });
    $("board").tHead.replaceChildren(el("tr", {}, first, head));
    $("board").tBodies[0].replaceChildren(...body);
    const all = view.group.cils.length * view.group.detectors.length;
    const many = view.seeds.length > 1 ? `, then over ${view.seeds.length} seeds ± standard deviation` : "";
    const over = `mean over ${view.group.needed[view.metric]} steps${many}`;
    $("count").textContent = `${board.found.length} of ${all} baselines · ${oodText()} · ${over} · percent`;
    $("notes").replaceChildren(...view.group.notes.map((text) => el("li", {}, text)));
    $("definition").textContent = `${label(view.metric)}: ${data.metrics[view.metric].definition}`;
  }

  // --- curves ----------------------------------------------------------------------------------------

  const MARKS = [
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-3.6,-3.6h7.2v7.2h-7.2z", "M0,-4.6L4.4,3.2H-4.4z",
    "M0,-5L5,0L0,5L-5,0z", "M0,4.6L4.4,-3.2H-4.4z", "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "M-4.5,-2h9v4h-9z", "M-2,-4.5h4v9h-4z",
  ];
  function drawn(view, board) {
    const { group } = view;
    const ticked = board.found.filter((line) => state.on.includes(line.key));
    const chosen = ticked.length ? ticked : board.found.slice(0, LINES);
    const one = (of) => unique(chosen.map(of)).length === 1;
    const name = (line) =>
      one((l) => l.cil) && !one((l) => l.detector) ? line.detector
        : one((l) => l.detector) && !one((l) => l.cil) ? line.cil : `${line.cil} · ${line.detector}`;
    const curves = chosen.map((line, i) => ({
      name: name(line), look: i + 1, mark: MARKS[i % MARKS.length],
      points: curve(perSeed(view, (s) => steps(group, view.metric, line.c, line.d, s, view.oods))),
      whole: line.value,
    }));
    if (state.accuracy) {
      for (const c of unique(chosen.map((line) => line.c))) {
        const series = perSeed(view, (s) => accuracies(group, c, s));
        curves.push({
          name: `${group.cils[c]} · accuracy`, look: 0, dashed: true, mark: "", points: curve(series),
          whole: average(series, group.planned),
        });
      }
    }
    const common = one((l) => l.cil) && !one((l) => l.detector) ? ` on ${chosen[0].cil}`
      : one((l) => l.detector) && !one((l) => l.cil) ? ` under ${chosen[0].detector}` : "";
    return { curves, ticked: ticked.length > 0, common };
  }
  function nice(low, high) {
    const rough = Math.max(high - low, 0.5) / 5;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const by = [1, 2, 2.5, 5, 10].map((f) => f * unit).find((step) => step >= rough);
    const first = Math.floor(low / by) * by;
    const ticks = [];
    for (let i = 0; first + i * by < high + by * 0.999; i++) ticks.push(first + i * by);
    return ticks;
  }
  function showChart(view, board) {
    const { curves, ticked, common } = drawn(view, board);
    $("chart-title").textContent = `${label(view.metric)} per step${common}`;
    const which = ticked ? "the baselines that are ticked" : "the first of the table: tick others there";
    $("chart-hint").textContent = `Percent, ${oodText()}; ${which}.`;
    const limits = curves.flatMap((c) => c.points.filter((p) => p.mean !== null).flatMap(reach));
    if (!limits.length) {
      $("chart").replaceChildren(el("p", { class: "note" }, "No values here."));
      $("legend").replaceChildren();
      return;
    }
    const W = Math.max(260, $("chart").clientWidth); // so that letters keep their size
    const [H, left, right, top, bottom] = [Math.min(360, Math.max(240, 0.62 * W)), 40, 12, 10, 38];
    const ticks = nice(Math.min(...limits), Math.max(...limits));
    const [low, high] = [ticks[0], ticks[ticks.length - 1]];
    const numbers = view.group.steps;
    const x = (t) => left + ((W - left - right) * (numbers.length > 1 ? t / (numbers.length - 1) : 0.5));
    const y = (value) => H - bottom - ((H - top - bottom) * (value - low)) / (high - low || 1);
    const digits = ticks.every((tick) => Math.abs(tick - Math.round(tick)) < 1e-9) ? 0 : 1;
    const every = Math.ceil(numbers.length / 10);
    const guide = draw("path", { class: "guide", d: "" });
    const word = (across, down, anchor, text) =>
      draw("text", { x: across, y: down, "text-anchor": anchor }, text);
    const spot = (c, t, value) =>
      draw("path", { class: `mark line-${c.look}`, d: c.mark, transform: `translate(${x(t)},${y(value)})` });
    const picture = draw(
      "svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, "aria-hidden": "true" },
      ticks.map((tick) => draw("path", { class: "rule", d: `M${left},${y(tick)}H${W - right}` })),
      ticks.map((tick) => word(left - 7, y(tick) + 4, "end", tick.toFixed(digits))),
      numbers.map((step, t) => (t % every ? null : word(x(t), H - bottom + 19, "middle", String(step)))),
      word((left + W - right) / 2, H - 4, "middle", "step"),
      guide,
      curves.map((c) => draw("path", { class: `band line-${c.look}`, d: band(c.points, x, y) })),
      curves.map((c) =>
        draw("path", { class: `curve line-${c.look}${c.dashed ? " dashed" : ""}`, d: path(c.points, x, y) }),
      ),
      curves.map((c) =>
        c.points.map((p, t) => (p.mean === null || !c.mark ? null : spot(c, t, p.mean))),
      ),
    );
    $("chart").replaceChildren(picture);
    const texts = curves.map((c) => `${c.name}: ${c.points.map((p) => percent(p.mean)).join(", ")}`);
    $("chart").setAttribute("aria-label", `${$("chart-title").textContent}. ${texts.join(". ")}`);
    showLegend(curves, null, numbers);

    // A step under the pointer, or chosen with the arrow keys, shows its values in the legend.
    let at = null;
    const mark = (t) => {
      at = t;
      guide.setAttribute("d", t === null ? "" : `M${x(t)},${top}V${H - bottom}`);
      showLegend(curves, t, numbers);
    };
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * W;
      const share = (place - left) / (W - left - right);
      mark(Math.max(0, Math.min(numbers.length - 1, Math.round(share * (numbers.length - 1)))));
    });
    picture.addEventListener("pointerleave", () => mark(null));
    $("chart").onkeydown = (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") mark(null);
      if (!move) return;
      event.preventDefault();
      const last = numbers.length - 1;
      mark(at === null ? (move > 0 ? 0 : last) : Math.max(0, Math.min(last, at + move)));
    };
  }
  function path(points, x, y) {
    let d = "";
    points.forEach((p, t) => {
      const pen = t && points[t - 1].mean !== null ? "L" : "M";
      if (p.mean !== null) d += `${pen}${x(t).toFixed(1)},${y(p.mean).toFixed(1)}`;
    });
    return d;
  }
  // From where to where a band goes; it ends where percents do.
  function reach({ mean: m, std }) {
    const [low, high] = [m - (std || 0), m + (std || 0)];
    return [m >= 0 ? Math.max(low, 0) : low, m <= 100 ? Math.min(high, 100) : high];
  }
  function band(points, x, y) {
    const there = points.map((p, t) => ({ ...p, t })).filter((p) => p.std !== null && p.mean !== null);
    if (there.length < 2) return "";
    const corner = (p, value) => `${x(p.t).toFixed(1)},${y(value).toFixed(1)}`;
    const edge = (list, side) => list.map((p) => corner(p, reach(p)[side]));
    return `M${[...edge(there, 1), ...edge(there.reverse(), 0)].join("L")}Z`;
  }
  function showLegend(curves, t, numbers) {
    const value = (c) => (t === null ? c.whole : c.points[t]);
    const items = [...curves].sort((a, b) => (value(b).mean ?? -1) - (value(a).mean ?? -1)).map((c) =>
      el(
        "li", {},
        draw(
          "svg", { width: 26, height: 12, viewBox: "-13 -6 26 12", "aria-hidden": "true" },
          draw("path", { class: `curve line-${c.look}${c.dashed ? " dashed" : ""}`, d: "M-13,0H13" }),
          draw("path", { class: `mark line-${c.look}`, d: c.mark }),
        ),
        el("span", { class: "name" }, c.name),
        el("span", {}, cell(value(c))),
      ),
    );
    const when = t === null ? "mean over steps" : `step ${numbers[t]}`;
    $("legend").replaceChildren(el("li", { class: "when" }, when), ...items);
  }

  // --- matrix ----------------------------------------------------------------------------------------

  function showMatrix(view) {
    const { group, metric } = view;
    const series = (c, d) => perSeed(view, (s) => steps(group, metric, c, d, s, view.oods));
    const at = (c, d) => average(series(c, d), group.needed[metric]);
    const table = view.detectors.map((d) => view.cils.map((c) => at(c, d)));
    const every = known(table.flat().map((found) => found.mean));
    const [low, high] = [Math.min(...every), Math.max(...every)];
    const ranked = (found, j) => isWhole(found, view, metric) && !group.detectors[view.detectors[j]].variant;
    const best = view.cils.map((_, i) => {
      const column = table.map((row) => row[i]).filter(ranked);
      return places(column.map((found) => found.mean), metric);
    });
    const mark = (found, i, j) =>
      ranked(found, j) ? ["best", "second", "third"][best[i].get(percent(found.mean)) - 1] : null;
    const rows = [];
    let family = null;
    view.detectors.forEach((d, j) => {
      const { name, family: now } = group.detectors[d];
      if (now !== family && now) {
        const head = el("th", { scope: "rowgroup", colspan: view.cils.length + 1 }, now);
        rows.push(el("tr", { class: "family" }, head));
      }
      family = now;
      const cells = table[j].map((found, i) => {
        const td = el("td", { class: "number" });
        if (found.mean !== null) {
          const share = high > low ? (found.mean - low) / (high - low) : 0.5;
          const good = lower(metric) ? 1 - share : share;
          td.style.background = `rgba(var(--shade), ${(0.03 + 0.37 * good).toFixed(3)})`;
        }
        const [value, ...rest] = cell(found);
        return fill(td, {}, [el("span", { class: mark(found, i, j) }, value), ...rest]);
      });
      rows.push(el("tr", {}, el("th", { scope: "row" }, name), cells));
    });
    const accuracy = view.cils.map((c) => {
      const found = average(perSeed(view, (s) => accuracies(group, c, s)), group.planned);
      return el("td", { class: "number" }, cell(found));
    });
    const heads = view.cils.map((c) => el("th", { scope: "col", class: "number" }, group.cils[c]));
    $("grid").replaceChildren(
      el("thead", {}, el("tr", {}, el("td"), heads)),
      el("tbody", {}, el("tr", {}, el("th", { scope: "row" }, "accuracy of the model"), accuracy), rows),
    );
    $("matrix-hint").replaceChildren(
      `${arrow(metric)}, ${oodText()}, percent; the stronger the colour, the better. Of each column: `,
      el("span", { class: "best" }, "best"), ", ", el("span", { class: "second" }, "second"), ", ",
      el("span", { class: "third" }, "third"), ". ",
      view.detectors.some((d) => group.detectors[d].variant)
        ? "A name with @ is its method under other values, and not marked. " : "",
      "It answers to the selection above.",
    );
  }

  // --- figures ---------------------------------------------------------------------------------------

  const addresses = new Map(); // of pictures, made when they are first shown
  function picture(figure) {
    if (!addresses.has(figure)) {
      addresses.set(figure, URL.createObjectURL(new Blob([figure.svg], { type: "image/svg+xml" })));
    }
    const address = addresses.get(figure);
    const save = el("a", { href: address, download: `${figure.name}.svg` }, "SVG");
    return el(
      "figure", { class: figure.wide ? "wide" : null },
      scrolling(el(
        "div", { class: "scroll" },
        el("img", { src: address, alt: figure.caption, width: figure.width, height: figure.height }),
      )),
      el("figcaption", {}, el("b", {}, figure.title), ` ${figure.caption} `, save),
    );
  }
  let gallery = "";
  function showFigures(view) {
    const key = JSON.stringify([state.benchmark, state.k, state.cil]);
    if (key === gallery) return;
    gallery = key;
    const here = data.figures.filter((f) => f.benchmark === state.benchmark && String(f.k) === state.k);
    const of = (cil) => here.filter((f) => f.cil === cil);
    const block = (cil, open) => {
      const box = el("div", { class: "pictures" });
      const load = () => box.childElementCount || box.append(...of(cil).map(picture));
      if (open) load();
      const toggled = (event) => event.target.open && load();
      return el("details", { open, ontoggle: toggled }, el("summary", {}, cil), box);
    };
    const shown = view.group.cils.filter((cil) => of(cil).length && (!state.cil || cil === state.cil));
    const parts = [
      el("div", { class: "pictures" }, of("").map(picture)),
      ...shown.map((cil, i) => block(cil, i === 0)),
    ];
    const why = data.refresh ? "They are drawn when all runs are done." : "This report has none.";
    $("gallery").replaceChildren(...(here.length ? parts : [el("p", { class: "note" }, why)]));
  }

  // --- runs ------------------------------------------------------------------------------------------

  const runName = (run) => `${run.benchmark}/k${run.k}/${run.cil}/seed${run.seed}`;
  const evaluated = (run) => Object.values(run.detectors).reduce((sum, n) => sum + n, 0);
  const wanted = (run) => Object.keys(run.detectors).length * (run.steps || 0);
  const isDone = (run) => run.steps !== null && run.trained === run.steps && evaluated(run) >= wanted(run);
  const stateOf = (run) => (isDone(run) ? "done" : run.trained || evaluated(run) ? "going" : "waiting");
  const STATES = { done: "done", going: "under way", waiting: "no step yet" };
  function meter(done, all) {
    const bar = el("i");
    bar.style.width = `${all ? (100 * done) / all : 0}%`;
    return el("span", { class: all && done >= all ? "meter full" : "meter", "aria-hidden": "true" }, bar);
  }
  function duration(seconds) {
    if (seconds < 90) return `${seconds.toFixed(0)} s`;
    return seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
  }
  const total = (of) => data.runs.reduce((sum, run) => sum + of(run), 0);

  function showRuns() {
    const count = (name) => data.runs.filter((run) => stateOf(run) === name).length;
    const parts = Object.entries(STATES).filter(([name]) => count(name)).map(([name, text], i) => [
      i ? ", " : "",
      el("span", { class: `state-${name}` }, `${count(name)} ${text}`),
    ]);
    const [done, all] = [total((r) => r.trained + evaluated(r)), total((r) => (r.steps || 0) + wanted(r))];
    const trained = `${total((r) => r.trained)} of ${total((r) => r.steps || 0)} steps trained`;
    const evaluations = `${total(evaluated)} of ${total(wanted)} evaluations of a detector on a step`;
    $("status").replaceChildren(
      meter(done, all),
      el("span", {}, `${data.runs.length} run${data.runs.length === 1 ? "" : "s"}: `, parts),
      el("span", { class: "hint" }, `${trained} · ${evaluations}`),
      ...refreshing(),
    );
    const rows = data.runs.map((run) => {
      const names = Object.keys(run.detectors);
      const missing = names.filter((name) => run.steps === null || run.detectors[name] < run.steps);
      const kinds = {};
      for (const [kind, time] of run.seconds.flatMap(Object.entries)) kinds[kind] = (kinds[kind] || 0) + time;
      const seconds = Object.values(kinds).reduce((a, b) => a + b, 0);
      const spent = Object.entries(kinds).map(([kind, time]) => `${kind} ${duration(time)}`).join(", ");
      const left = missing.map((name) => `${name} ${run.detectors[name]}/${run.steps ?? "?"}`).join(", ");
      return el(
        "tr", {},
        el("th", { scope: "row" }, runName(run)),
        el("td", { class: `state-${stateOf(run)}` }, STATES[stateOf(run)]),
        el("td", {}, meter(run.trained, run.steps), ` ${run.trained}/${run.steps ?? "?"}`),
        el("td", {}, meter(evaluated(run), wanted(run)), ` ${names.length - missing.length}/${names.length}`),
        el("td", { class: "free" }, left || "–"),
        el("td", { class: "number", title: spent || null }, seconds ? duration(seconds) : "–"),
        el("td", {}, String(run.environment.device ?? "–")),
      );
    });
    const names = ["Run", "State", "Steps trained", "Detectors done", "Still to do (steps done)"];
    names.push("Time", "Device");
    const heads = names.map((name) => el("th", { scope: "col" }, name));
    $("progress").replaceChildren(el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));
    $("configs").replaceChildren(
      ...data.runs.map((run) => {
        const text = el("pre", { tabindex: "0" });
        const load = (event) => { if (event.target.open) text.textContent = data.configs[run.config]; };
        return el("details", { ontoggle: load }, el("summary", {}, runName(run)), text);
      }),
    );
  }
  function refreshing() {
    if (!data.refresh) return [];
    let timer = setTimeout(() => location.reload(), 1000 * data.refresh);
    const text = el("span", { class: "hint" }, `read anew every ${data.refresh} s`);
    const button = el("button", { type: "button" }, "Pause");
    button.addEventListener("click", () => {
      if (timer) clearTimeout(timer);
      else location.reload();
      timer = null;
      button.textContent = "Go on";
      text.textContent = "paused";
    });
    return [text, button];
  }

  function showAbout() {
    const kinds = new Map();
    for (const run of data.runs) {
      const key = JSON.stringify(run.environment);
      kinds.set(key, [...(kinds.get(key) || []), run]);
    }
    const tables = [...kinds].map(([key, runs]) => {
      const lines = Object.entries(JSON.parse(key)).map(([name, value]) =>
        el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, String(value))),
      );
      const empty = el("tr", {}, el("td", {}, "nothing noted yet"));
      const head = el("p", { class: "hint" }, `${runs.length} of ${data.runs.length} runs`);
      return [head, el("table", {}, lines.length ? lines : empty)];
    });
    $("environments").replaceChildren(...tables.flat());
    $("differences").replaceChildren(...data.differences.map((text) => el("li", {}, text)));
    $("metrics").replaceChildren(
      ...Object.values(data.metrics).map((metric) =>
        el("div", {}, el("dt", {}, metric.label), el("dd", {}, metric.definition)),
      ),
    );
  }

  // --- all of it -------------------------------------------------------------------------------------

  function show() {
    if (!data.groups.length) {
      for (const id of ["leaderboard", "matrix", "figures"]) $(id).hidden = true;
      keep();
      return;
    }
    const view = choose();
    const board = lines(view);
    state.on = state.on.filter((key) => typeof key === "string").slice(0, MOST);
    showBoard(view, board);
    showChart(view, board);
    showMatrix(view);
    showFigures(view);
    $("with-accuracy").checked = Boolean(state.accuracy);
    keep();
  }
  function paint() {
    const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").setAttribute("aria-pressed", String(dark));
  }
  filters.addEventListener("change", (event) => {
    state[event.target.name] = event.target.value;
    show();
  });
  filters.addEventListener("submit", (event) => event.preventDefault());
  $("with-accuracy").addEventListener("change", (event) => {
    state.accuracy = event.target.checked ? "yes" : "";
    show();
  });
  $("theme").addEventListener("click", () => {
    state.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    paint();
    keep();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  for (const link of document.querySelectorAll('nav a, a.skip')) {
    link.addEventListener("click", (event) => { // the address holds the selection: scroll without it
      event.preventDefault();
      const goal = $(link.getAttribute("href").slice(1));
      goal.scrollIntoView();
      goal.focus({ preventScroll: true });
    });
  }
  for (const box of document.querySelectorAll(".scroll")) scrolling(box);
  let wide = 0;
  new ResizeObserver(() => {
    if (wide && wide !== $("chart").clientWidth) show();
    wide = $("chart").clientWidth;
  }).observe($("chart"));
  addEventListener("hashchange", () => { load(); paint(); show(); });
  load();
  paint();
  show();
  showRuns();
  showAbout();
  document.documentElement.dataset.ready = "yes";
})();
