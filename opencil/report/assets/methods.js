// Methods: what they are and where they were published, as tips on their names and as a list.

const aboutOf = (kind, name) => data.methods[kind][own(name)];
function tipOf(kind, name) {
  const about = aboutOf(kind, name);
  if (!about) return "";
  const paper = about.title ? ` ${about.title}, ${about.year}.` : "";
  return `${about.about}${paper}${name === own(name) ? "" : ` ${name} is ${own(name)} under other values.`}`;
}
const outward = { target: "_blank", rel: "noopener noreferrer" };
// A method's name, which leads to its paper. In long tables it is no stop of the Tab key.
function methodName(kind, name, stop = true) {
  const link = aboutOf(kind, name)?.link;
  const made = link
    ? el("a", { href: link, class: "method", tabindex: stop ? null : "-1", ...outward }, name)
    : el("span", { class: "method" }, name);
  return withTip(made, tipOf(kind, name));
}
function showMethods() {
  const heads = ["Name", "What it is", "Paper"].map((name) => el("th", { scope: "col" }, name));
  const table = (kind, names) => [
    el("thead", {}, el("tr", {}, heads)),
    el("tbody", {}, names.map((name) => {
      const about = aboutOf(kind, name);
      const title = about?.title ? `${about.title}, ${about.year}` : "–";
      return el(
        "tr", {}, el("th", { scope: "row" }, name),
        el("td", { class: "free" }, about ? about.about : "It is not installed where this page was made."),
        el("td", { class: "free" }, about?.link ? el("a", { href: about.link, ...outward }, title) : title),
      );
    })),
  ];
  const names = (of) => unique(data.groups.flatMap(of).map((one) => own(one.name)));
  $("cil-methods").replaceChildren(...table("cil", names((g) => g.cils)));
  $("detectors").replaceChildren(...table("detector", names((g) => g.detectors)));
}
