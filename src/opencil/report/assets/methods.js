// Methods: descriptions and papers, as tips on their names and as a list.

const aboutOf = (kind, name) => data.methods[kind][own(name)];
// A name as its paper writes it, for the eye alone: addresses and files have the name that commands take.
const titled = (kind, name) =>
  name.replace(/^[^@ ]+/, (registered) => data.methods[kind]?.[registered]?.written ?? registered);
function tipOf(kind, name) {
  const about = aboutOf(kind, name);
  if (!about) return "";
  const paper = about.title ? ` ${about.title}, ${about.year}.` : "";
  const [shown, plain] = [name, own(name)].map((one) => titled(kind, one));
  return `${about.about}${paper}${shown === plain ? "" : ` ${shown} is ${plain} under other values.`}`;
}
const outward = { target: "_blank", rel: "noopener noreferrer" };
// A method's name, which leads to its paper. In long tables it is no stop of the Tab key.
function methodName(kind, name, stop = true) {
  const href = aboutOf(kind, name)?.link;
  const linked = href ? { href, tabindex: stop ? null : "-1", ...outward } : {};
  const attributes = { class: "method", "data-tip": tipOf(kind, name) || null, ...linked };
  return el(href ? "a" : "span", attributes, titled(kind, name));
}
const term = (word, tip) => el("span", { class: "term", tabindex: "0", "data-tip": tip }, word);
function showMethods() {
  const row = (kind, name) => {
    const about = aboutOf(kind, name);
    const title = about?.title ? `${about.title}, ${about.year}` : "";
    return el(
      "tr", {}, el("th", { scope: "row" }, titled(kind, name)),
      el(
        "td", { class: "free" }, about ? about.about : "It is not installed where this page was made.", " ",
        about?.link ? el("a", { href: about.link, ...outward }, title) : title,
      ),
    );
  };
  const names = (of) => unique(data.groups.flatMap(of).map(({ name }) => own(name)));
  const table = (kind, of) => [
    el("thead", {}, el("tr", {}, ["Name", "Description and paper"].map((text) =>
      el("th", { scope: "col" }, text)))),
    el("tbody", {}, names(of).map((name) => row(kind, name))),
  ];
  $("cil-methods").replaceChildren(...table("cil", (group) => group.cils));
  $("detectors").replaceChildren(...table("detector", (group) => group.detectors));
}
