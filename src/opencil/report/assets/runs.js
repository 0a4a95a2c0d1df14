// Runs: their progress, and the versions and device that made them.

const runName = (run) => `${run.benchmark}/k${run.k}/${run.cil}/seed${run.seed}`;
const evaluated = (run) => Object.values(run.detectors).reduce((sum, n) => sum + n, 0);
const wanted = (run) => Object.keys(run.detectors).length * (run.steps || 0);
const isDone = (run) => run.steps !== null && run.trained === run.steps && evaluated(run) >= wanted(run);
const files = (run) => Object.keys(run.left_out ?? {});
function stateOf(run) {
  if (files(run).length) return "damaged";
  if (isDone(run)) return "done";
  if (run.failed) return "failed";
  return run.trained || evaluated(run) ? "going" : "waiting";
}
const STATES = {
  done: "done", going: data.refresh ? "under way" : "not finished", waiting: "no step yet", failed: "failed",
  damaged: "damaged",
};
function meter(done, all) {
  const bar = el("i");
  bar.style.width = `${all ? (100 * done) / all : 0}%`;
  return el("span", { class: all && done >= all ? "meter full" : "meter", "aria-hidden": "true" }, bar);
}
function duration(seconds) {
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  return seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
// Megabytes after the latest step that has rows of them.
const megabytes = ({ kept }) => (kept ? `${kept.map((of) => of.toFixed(2)).join(" + ")} MB` : "–");
const total = (of) => data.runs.reduce((sum, run) => sum + of(run), 0);

const FEW = 6; // unfinished detectors of a run that are named
function showRuns() {
  const count = (name) => data.runs.filter((run) => stateOf(run) === name).length;
  const parts = Object.entries(STATES).filter(([name]) => count(name)).map(([name, text], i) => [
    i ? ", " : "",
    el("span", { class: `state-${name}` }, `${count(name)} ${text}`),
  ]);
  const [done, all] = [total((r) => r.trained + evaluated(r)), total((r) => (r.steps || 0) + wanted(r))];
  const trained = `${total((r) => r.trained)} of ${total((r) => r.steps || 0)} steps trained`;
  const evaluations = `${total(evaluated)} of ${total(wanted)} evaluations of a detector on a step`;
  $("status").replaceChildren(
    meter(done, all),
    el("span", {}, `${plural(data.runs.length, "run")}: `, parts),
    el("span", { class: "hint" }, `${trained} · ${evaluations}`),
    ...refreshing(),
    ...data.problems.map((text) => el("p", { class: "problem" }, `Damaged or lost, so left out: ${text}`)),
  );
  if (data.refresh || data.problems.length || !data.groups.length) document.querySelector("main").prepend($("status"));
  $("makers").replaceChildren(...unique(data.groups.flatMap((group) => group.makers.map((note) =>
    `${group.benchmark}, k = ${group.k}: ${note}`))).map((note) => el("li", {}, note)));
  const rows = data.runs.map((run) => {
    const names = Object.keys(run.detectors);
    const missing = names.filter((name) => run.steps === null || run.detectors[name] < run.steps);
    const seconds = Object.values(run.seconds).reduce((a, b) => a + b, 0);
    const spent = Object.entries(run.seconds).map(([kind, time]) => `${kind} ${duration(time)}`).join(", ");
    const tip = spent ? `${spent}; stages overlap where runs share a device` : null;
    const few = missing.slice(0, FEW).map((name) => `${name} ${run.detectors[name]}/${run.steps ?? "?"}`);
    const left = [...few, ...(missing.length > FEW ? [`${missing.length - FEW} more`] : [])].join(", ");
    return el(
      "tr", {},
      el("th", { scope: "row" }, runName(run)),
      el("td", { class: `state-${stateOf(run)}` }, STATES[stateOf(run)]),
      el("td", {}, meter(run.trained, run.steps), ` ${run.trained}/${run.steps ?? "?"}`),
      el("td", {}, meter(evaluated(run), wanted(run)), ` ${names.length - missing.length}/${names.length}`),
      el("td", { class: "free" }, lacks(run, left) || "–"),
      el("td", { class: "number", title: tip }, seconds ? duration(seconds) : "–"),
      el("td", { class: "number" }, megabytes(run)),
      el("td", {}, String(run.environment.device ?? "–")),
    );
  });
  const names = ["Run", "State", "Steps trained", "Detectors done", "Still to do (steps done)"];
  names.push("Stages’ time", "Model + memory", "Device");
  const heads = names.map((name) => el("th", { scope: "col" }, name));
  $("progress").replaceChildren(el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows));
  $("configs").replaceChildren(
    ...data.runs.map((run) => {
      const text = el("pre", { tabindex: "0" });
      const load = (event) => { if (event.target.open) text.textContent = run.config; };
      return el("details", { ontoggle: load }, el("summary", {}, runName(run)), text);
    }),
  );
}
const lacks = (run, left) =>
  [left, files(run).length ? `damaged or lost: ${files(run).join(", ")}` : "", run.failed].filter(Boolean).join("; ");
function refreshing() {
  if (!data.refresh) return [];
  let timer = setTimeout(() => location.reload(), 1000 * data.refresh);
  const text = el("span", { class: "hint" }, `read anew every ${data.refresh} s`);
  const button = el("button", { type: "button" }, "Pause");
  button.addEventListener("click", () => {
    if (timer) clearTimeout(timer);
    else location.reload();
    timer = null;
    button.textContent = "Go on";
    text.textContent = "paused";
  });
  return [text, button];
}

