// Put all parts together.

function show() {
  if (!data.groups.length) { // no detector has been evaluated
    for (const id of ["answer", "leaderboard", "matrix", "methods", "figures"]) $(id).hidden = true;
    keep();
    return;
  }
  const view = choose();
  const board = lines(view);
  state.on = state.on.slice(0, MOST);
  showChart(view, board); // it asks for its width, which is quick as long as nothing has changed
  showTerms(view);
  showAnswer(view);
  showBoard(view, board);
  showMatrix(view);
  showFigures(view);
  $("with-accuracy").checked = Boolean(state.accuracy);
  $("with-accuracy").parentNode.hidden = view.ofModel;
  keep();
}
function paint() {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Use light colours" : "Use dark colours";
}
$("with-accuracy").addEventListener("change", (event) => {
  state.accuracy = event.target.checked ? "yes" : "";
  show();
});
$("all").addEventListener("click", () => {
  state.all = state.all ? "" : "yes";
  show();
});
$("theme").addEventListener("click", () => {
  state.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  paint();
  keep();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
function fold() { // a phone shows the headings of long parts
  for (const part of document.querySelectorAll("details.fold")) {
    part.open = part.id === "choices" || part.dataset.long ? !phone.matches : false;
  }
}
phone.addEventListener("change", () => {
  if (!phone.matches) $("choices").open = true; // a wide page has no heading to open it by
  show();
});
for (const link of document.querySelectorAll('nav a, a.skip')) {
  link.addEventListener("click", (event) => { // the address holds the selection: scroll without it
    event.preventDefault();
    const goal = $(link.getAttribute("href").slice(1));
    for (const part of goal.querySelectorAll(":scope > details.fold")) part.open = true;
    goal.scrollIntoView();
    goal.focus({ preventScroll: true });
  });
}
for (const box of document.querySelectorAll(".scroll")) scrolling(box);
new ResizeObserver(() => { if (drawnAt !== $("chart").clientWidth) show(); }).observe($("chart"));
addEventListener("hashchange", () => { load(); paint(); show(); });
load();
paint();
fold();
show();
showRuns();
showMethods();
showTables();
showAbout();
for (const link of document.querySelectorAll("nav a")) {
  link.hidden = $(link.getAttribute("href").slice(1)).hidden;
}
document.documentElement.dataset.ready = "yes";
