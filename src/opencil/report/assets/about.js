// Terms for visitors, of the present selection; environments, differences, metrics.

function showTerms(view) {
  const { group } = view;
  const named = (distance) => Object.keys(group.sets).filter((name) => group.sets[name] === distance).join(", ");
  const k = typeof group.k === "number" ? `${group.k} new classes at each`
    : `${group.k}: so many classes at the first, and at each after it`;
  const terms = [
    ["Step and k", `The model learns in ${plural(group.planned, "step")}, k = ${k}.`],
    ["Near OOD", "Sets that resemble what is learned, so that they are hard to tell apart", named("near")],
    ["Far OOD", "Sets that look like something else", named("far")],
    ["Shifted", "Images of learned classes, spoilt: they should still be known", named("shifted")],
    ["Future", "Test images of classes that later steps bring, in no average with other sets", named("future")],
    [label(view.metric), definition(view.metric).slice(label(view.metric).length + 2)],
  ];
  $("terms").replaceChildren(
    ...terms.filter(([, , sets]) => sets !== "").map(([term, text, sets]) =>
      el("div", {}, el("dt", {}, term), el("dd", {}, sets ? `${text}: ${sets}.` : text)),
    ),
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
