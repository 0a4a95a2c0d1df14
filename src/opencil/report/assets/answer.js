// The answer: the best detectors on one CIL model, as Python has chosen them.

const NAMED = 3; // detectors of a kind that are named
function showAnswer(view) {
  const { group } = view;
  const put = (id, ...parts) => fill($(id), {}, parts);
  for (const id of ["verdict", "verdict-basis"]) $(id).replaceChildren();
  $("gone").textContent = gone?.group === group
    ? `${titled("cil", gone.name)} has no detectors at k = ${group.k}: here is ${titled("cil", state.model)}.` : "";
  const found = group.answers[state.model];
  if (!found) {
    put("verdict-basis", "No detector has finished all steps on it.");
    return;
  }
  const { best: [first, ...alike], few } = found;
  const value = (mean, std) => (std === null ? mean.toFixed(1) : `${mean.toFixed(1)} ± ${std.toFixed(1)}`);
  const named = ([name, mean, std]) => [methodName("detector", name), ` ${value(mean, std)}`];
  const list = (ones) => [
    ones.slice(0, NAMED).map((one, i) => [i ? ", " : "", named(one)]),
    ones.length > NAMED ? ` and ${ones.length - NAMED} more` : "",
  ];
  const single = few.every((one) => one[3] === 1) ? "On one seed only: " : "On fewer seeds: ";
  const apart = term("not told apart", "Told apart is a detector that is worse on every seed, and by over a point"
    + ` in the mean. On one seed: by ${data.noise} points or more.`);
  put(
    "verdict", el("strong", {}, named(first)), alike.length ? ["; ", list(alike)] : "",
    first[3] > 1 ? ` (${first[3]} seeds)` : "",
    few.length ? [". ", single, list(few)] : "",
    alike.length + few.length ? [": ", apart, "."] : "; no other is close.",
  );
  const accuracy = group.averages.accuracy?.[""]?.[""]?.[`${state.model}\n`];
  const seeds = first[3];
  put(
    "verdict-basis", term(arrow(data.main[0]), definition(data.main[0])), " in percent, all OOD sets, mean over ",
    plural(needed(view, data.main[0]), "step"), seeds > 1 ? `, ± standard deviation over ${seeds} seeds. ` : ". ",
    accuracy ? `Accuracy of the model: ${value(...accuracy)}. ` : "", oneSeed(seeds) ?? "",
  );
}
// The CIL model that is shown first: of those with the most seeds, the one with the best answer.
function bestModel(group) {
  const first = group.cils.filter(({ name, bound, variant }) => name in group.answers && !bound && !variant)
    .map(({ name }) => [name, ...group.answers[name].best[0]]);
  const most = Math.max(...first.map((one) => one[4]));
  const sign = first.length && lower(data.main[0]) ? -1 : 1;
  return first.filter((one) => one[4] === most).sort((a, b) => sign * (b[2] - a[2]))[0]?.[0];
}
