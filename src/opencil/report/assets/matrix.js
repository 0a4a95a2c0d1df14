// Detectors by CIL models, coloured by rank: each column has its own, and sorts the rows.

const WIDE = 8; // columns that have room for deviations
const MARKED = [null, "best", "second", "third"];

// Return for each detector its averages on each CIL model, with their places in the column.
function table(view) {
  const { group, metric } = view;
  const found = view.detectors.map((d) => view.cils.map((c) => averageOf(view, metric, c, d)));
  const ranked = (one, j) => isWhole(one, view, metric) && !group.detectors[view.detectors[j]].variant;
  const place = view.cils.map((_, i) =>
    placesOf(found.map((row) => row[i]).filter(ranked).map((one) => one.mean), metric));
  return found.map((row, j) => row.map((one, i) => {
    const rank = ranked(one, j) ? place[i].get(percent(one.mean)) : null;
    return { ...one, rank, shade: rank ? 1 - (rank - 1) / Math.max(1, place[i].size - 1) : null };
  }));
}
function showMatrix(view) {
  const { group, metric } = view;
  const values = table(view);
  $("matrix").hidden = view.ofModel;
  if (view.ofModel) return;
  const shown = (i, j) => view.found(view.cils[i], view.detectors[j]) && values[j][i].mean !== null
    && (values[j][i].seeds >= view.most || view.asked(view.cils[i], view.detectors[j]));
  const at = view.cils.map((_, i) => i).filter((i) => view.detectors.some((_, j) => shown(i, j))); // columns
  const cils = at.map((i) => view.cils[i]);
  const accuracy = cils.map((c) => averageOf(view, "accuracy", c));
  const row = (d, j) => ({ d, name: group.detectors[d].name, cells: at.map((i) => values[j][i]) });
  const every = view.detectors.map(row).filter((_, j) => at.some((i) => shown(i, j)));
  const by = cils.findIndex((c) => group.cils[c].name === state.by); // the column that sorts, if any
  const [sign, key] = [lower(metric) ? 1 : -1, ({ cells }) => cells[by].mean ?? -sign * Infinity];
  const late = ({ cells }) => cells[by].seeds < view.most;
  const members = by >= 0
    ? [{ open: true, rows: every.sort((a, b) => late(a) - late(b) || sign * (key(a) - key(b))) }]
    : unique(every.map(({ d }) => group.detectors[d].family)).map((family) => ({
      family, open: !state.folded.includes(family),
      rows: every.filter(({ d }) => group.detectors[d].family === family),
    }));
  const chosen = cils.findIndex((c) => group.cils[c].name === state.model); // its column is marked
  const look = (i, more = "") => `number${i === chosen ? " chosen" : ""}${more}`;
  const made = (row) => matrixRow(row, look);
  const rows = members.map(({ family, open, rows: inside }) => {
    if (!family) return inside.map(made);
    const turn = () => {
      state.folded = open ? [...state.folded, family] : state.folded.filter((one) => one !== family);
      show();
      $("grid").querySelector(`button[data-family="${CSS.escape(family)}"]`).focus();
    };
    const fold = el(
      "button", { type: "button", "aria-expanded": String(open), "data-family": family, onclick: turn },
      `${open ? "▾" : "▸"} ${family} (${inside.length})`,
    );
    const head = el("th", { scope: "rowgroup", colspan: cils.length + 1 }, fold);
    return [el("tr", { class: "family" }, head), open ? inside.map(made) : []];
  });
  const head = (name, text, tip, look) => {
    const turn = () => {
      state.by = name;
      show();
      $("grid").querySelector(`th[data-by="${CSS.escape(name)}"] button`).focus();
    };
    return el(
      "th", {
        scope: "col", class: look, "data-by": name,
        "aria-sort": name && name === state.by ? (sign > 0 ? "ascending" : "descending") : null,
      },
      el("button", { type: "button", onclick: turn, "data-tip": tip || null }, text),
    );
  };
  const heads = cils.map((c) => group.cils[c].name)
    .map((name, i) => head(name, titled("cil", name), tipOf("cil", name), look(i)));
  const models = accuracy.map((one, i) => el("td", { class: look(i) }, cell(one)));
  $("grid").replaceChildren(
    el("thead", {}, el("tr", {}, head("", "Detector", "Sort by family, as in the paper."), heads)),
    el("tbody", {}, el("tr", {}, el("th", { scope: "row" }, "accuracy of the model"), models), rows),
  );
  const dense = cils.length > WIDE;
  $("grid").classList.toggle("dense", dense);
  const variants = view.detectors.some((d) => group.detectors[d].variant)
    ? "A name with @ is its method under other values, and has no place. " : "";
  const deviations = dense && view.seeds.length > 1 ? "Deviations: point at a value, or save the table. " : "";
  $("matrix-hint").replaceChildren(
    term(arrow(metric), definition(metric)),
    `, ${basis(view)}. The stronger the colour, the better the place in its column: `,
    el("span", { class: "best" }, "best"), ", ", el("span", { class: "second" }, "second"), ", ",
    el("span", { class: "third" }, "third"), `. A CIL method's name sorts by it. ${variants}${deviations}`,
  );
  $("matrix-saving").replaceChildren(saving(() => ({
    name: `matrix-${metric}-${group.benchmark}-k${group.k}`,
    title: `${group.benchmark}, ${group.k} classes per step: ${label(metric)} of detectors on CIL models`,
    columns: [
      { text: "detector", label: true }, ...cils.map((c) => ({ text: group.cils[c].name })), { text: "seeds" },
    ],
    lines: [
      ["accuracy of the model", ...accuracy],
      ...members.filter(({ open }) => open).flatMap((part) => part.rows.map((r) => [r.name, ...r.cells])),
    ].map((line) => [...line, seedsText(view, line.slice(1))]),
    notes: [`${basis(view)}.`, ...[oneSeed(view.seeds.length)].filter(Boolean), definition(metric)],
    missing: view.group.missing,
  })));
}
function matrixRow({ name, cells }, look) {
  const made = cells.map((one, i) => {
    const td = el("td", { class: look(i, one.lacking ? " few" : ""), title: one.std === null ? null : textOf(one) });
    if (one.shade !== null) td.style.setProperty("--strength", (0.03 + 0.32 * one.shade).toFixed(3));
    const [value, ...rest] = cell(one);
    return fill(td, {}, [el("span", { class: MARKED[one.rank] ?? null }, value), ...rest]);
  });
  return el("tr", {}, el("th", { scope: "row" }, methodName("detector", name)), made);
}
