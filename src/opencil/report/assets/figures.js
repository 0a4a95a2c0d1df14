// Figures: drawings become pictures when they are first shown; dark pages invert them by style alone.

function picture(figure) {
  figure.address ??= URL.createObjectURL(new Blob([figure.svg], { type: "image/svg+xml" }));
  const image = el("img", {
    src: figure.address, alt: figure.caption, width: figure.width, height: figure.height,
  });
  const save = el("a", { href: figure.address, download: `${figure.name}.svg` }, "Save as SVG");
  return el(
    "figure", { class: figure.wide ? "wide" : null },
    scrolling(el(
      "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${figure.title}, scrollable` },
      image,
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
    return el("details", { open, ontoggle: toggled }, el("summary", {}, titled("cil", cil)), box);
  };
  const shown = view.group.cils.map((c) => c.name)
    .filter((cil) => of(cil).length && (!state.cil.length || state.cil.includes(cil)));
  const parts = [
    el("div", { class: "pictures" }, of("").map(picture)),
    ...shown.map((cil, i) => block(cil, i === 0)),
  ];
  const without = view.group.cils.length - unique(here.map((f) => f.cil).filter(Boolean)).length;
  if (shown.length && without > 1) { // the reference has none of its own
    const note = "Other CIL models have no figures here: opencil report --top all draws all of them.";
    parts.push(el("p", { class: "note" }, note));
  }
  const why = data.refresh ? "They are drawn when all runs are done." : "This report has none.";
  $("gallery").replaceChildren(...(here.length ? parts : [el("p", { class: "note" }, why)]));
}
