// What the page is about, with its terms as tips; environments, differences, metrics.

function showTerms({ group }) {
  const named = (distance) => Object.keys(group.sets).filter((name) => group.sets[name] === distance).join(", ");
  const k = typeof group.k === "number" ? `${group.k} new classes at each`
    : `${group.k}: so many classes at the first, and at each after it`;
  const kinds = [
    ["near", "Near OOD: sets that resemble what is learned, so that they are hard to tell apart", named("near")],
    ["far", "Far OOD: sets that look like something else", named("far")],
    ["shifted", "Images of learned classes, spoilt: they should still be known", named("shifted")],
    ["future", "Test images of classes that later steps bring, in no average with other sets", named("future")],
  ].filter(([, , sets]) => sets).map(([word, text, sets]) => [word, `${text}: ${sets}.`]);
  $("terms").replaceChildren(
    "A ", term("CIL", "Class-incremental learning."), " model learns ",
    term("k classes", `The model learns in ${plural(group.planned, "step")}, k = ${k}.`),
    " at a time. A detector scores images, to tell those of learned classes from ",
    term("OOD", "Out-of-distribution: images of no learned class."), " images",
    ...(kinds.length ? [" (", ...kinds.flatMap((kind, i) => [i ? ", " : "", term(...kind)]), ")"] : [""]),
    ", after every step.",
  );
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
