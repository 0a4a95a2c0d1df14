// Figures, in the colours of the page's theme; what is saved is as on paper.

const isDark = () => document.documentElement.dataset.theme === "dark";
const inDark = (svg) =>
  svg.replace("<svg ", `<svg fill="${data.dark["#000000"]}" `) // of letters, which have none of their own
    .replace(/: (#[0-9a-f]{6})/g, (whole, colour) => `: ${data.dark[colour] ?? colour}`);
const addresses = new Map(); // of pictures, made when they are first shown
function addressOf(figure, dark) {
  const key = `${dark} ${data.figures.indexOf(figure)}`;
  if (!addresses.has(key)) {
    const svg = dark ? inDark(textOfLines(figure.svg)) : textOfLines(figure.svg);
    addresses.set(key, URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" })));
  }
  return addresses.get(key);
}
const pictures = new Map(); // what is shown: images and their figures
function paintFigures() {
  for (const [image, figure] of pictures) image.src = addressOf(figure, isDark());
}
function picture(figure) {
  const image = el("img", {
    src: addressOf(figure, isDark()), alt: figure.caption, width: figure.width, height: figure.height,
  });
  pictures.set(image, figure);
  const save = el("a", { href: addressOf(figure, false), download: `${figure.name}.svg` }, "Save as SVG");
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
  pictures.clear();
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
    const told = "Other CIL models have no figures here: opencil report --top all draws those of all.";
    parts.push(el("p", { class: "note" }, told));
  }
  const why = data.refresh ? "They are drawn when all runs are done." : "This report has none.";
  $("gallery").replaceChildren(...(here.length ? parts : [el("p", { class: "note" }, why)]));
}
