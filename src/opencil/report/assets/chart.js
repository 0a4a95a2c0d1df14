// Curves per step: of the first lines of the leaderboard, or of its ticked lines.

const LINES = 6; // curves that are shown where none is ticked
const MARKS = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-3.6,-3.6h7.2v7.2h-7.2z", "M0,-4.6L4.4,3.2H-4.4z",
  "M0,-5L5,0L0,5L-5,0z", "M0,4.6L4.4,-3.2H-4.4z", "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
  "M-4.5,-2h9v4h-9z", "M-2,-4.5h4v9h-4z",
];
function drawn(view, board) {
  const { group } = view;
  const ticked = board.found.filter((line) => state.on.includes(line.key));
  const chosen = ticked.length ? ticked : board.found.slice(0, LINES);
  const kinds = kindsOf(view);
  const shared = kinds.filter((kind) => unique(chosen.map((line) => line[kind])).length === 1);
  const common = shared.length === 1 ? shared[0] : ""; // the heading has it, so no line needs it
  const name = (line) =>
    kinds.filter((kind) => kind !== common || kinds.length === 1).map((kind) => titled(kind, line[kind])).join(" · ");
  const curves = chosen.map((line, i) => ({
    name: name(line), look: i + 1, mark: MARKS[i % MARKS.length],
    points: line.value.points, whole: line.value,
  }));
  if (state.accuracy && !view.ofModel) {
    for (const c of unique(chosen.map((line) => line.c))) {
      const whole = averageOf(view, "accuracy", c);
      curves.push({
        name: `${titled("cil", group.cils[c].name)} · accuracy`, look: 0, dashed: true, mark: "",
        points: whole.points, whole,
      });
    }
  }
  const of = common && ` ${common === "cil" ? "on" : "under"} ${titled(common, chosen[0][common])}`;
  return { curves, ticked: ticked.length > 0, common: of };
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
let drawnAt = 0; // the width that the chart had then
function showChart(view, board) {
  drawnAt = $("chart").clientWidth;
  const { curves, ticked, common } = drawn(view, board);
  $("chart-title").textContent = `${label(view.metric)} per step${common}`;
  const which = ticked ? "the combinations that are ticked" : "the first of the table: tick others there";
  $("chart-hint").textContent = `Percent${view.ofModel ? "" : `, ${setsText()}`}; ${which}.`;
  const limits = curves.flatMap((c) => c.points.filter((p) => p.mean !== null).flatMap(reach));
  if (!limits.length) {
    $("chart").replaceChildren(el("p", { class: "note" }, "No values here."));
    $("legend").replaceChildren();
    return;
  }
  const W = Math.max(260, drawnAt); // so that letters keep their size
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
// Return the limits of a band, which ends where percents do.
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
  const whole = state.metric === "forgetting" ? "after the last step" : "mean over steps";
  const when = t === null ? whole : `step ${numbers[t]}`;
  $("legend").replaceChildren(el("li", { class: "when" }, when), ...items);
}
