// Read the data and make elements. Names come from outside: they become text nodes and attribute values, never
// markup.

const $ = (id) => document.getElementById(id);
const data = await unpack($("data").textContent);
data.groups = data.groups.filter((group) => Object.keys(group.baselines).length); // groups with a value
const phone = matchMedia("(max-width: 560px)");
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
const unique = (values) => [...new Set(values)];
const plural = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

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

// Shade the edges of a box that can be scrolled: a phone shows no scroll bar.
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

// Show a text while its element is pointed at or has the focus; Escape hides it.
let tipped = null;
function showTip(node) {
  tipped?.removeAttribute("aria-describedby");
  tipped = node;
  $("tip").hidden = !node;
  if (!node) return;
  node.setAttribute("aria-describedby", "tip");
  $("tip").textContent = node.dataset.tip;
  const [box, own] = [node.getBoundingClientRect(), $("tip").getBoundingClientRect()];
  const below = box.bottom + own.height + 8 < innerHeight;
  $("tip").style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
  $("tip").style.top = `${below ? box.bottom + 4 : box.top - own.height - 4}px`;
}
document.addEventListener("pointerover", ({ target }) => {
  if (!target.closest("#tip")) showTip(target.closest("[data-tip]")); // the tip itself may be pointed at
});
document.addEventListener("focusin", ({ target }) => showTip(target.closest("[data-tip]")));
document.addEventListener("scroll", () => { // a focus may scroll: its tip follows
  if (tipped) showTip(tipped === document.activeElement ? tipped : null);
}, { capture: true, passive: true });
document.addEventListener("keydown", ({ key }) => { if (key === "Escape") showTip(null); });
