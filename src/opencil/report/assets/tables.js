// Tables that were made with the page: statistics, and ours beside the survey's.

function showTables() {
  $("tables").hidden = !data.tables.length;
  if (data.opened) { // a board: its submissions come first
    $("answer").before($("tables"));
    for (const title of [$("tables-title"), document.querySelector("nav a[href='#tables']")]) {
      title.textContent = data.tables[0].title;
    }
    $("tables").querySelector("details").open = true;
  }
  $("tables-hint").textContent = oneSeed(Math.min(...data.groups.map((group) => group.seeds.length))) ?? "";
  $("made-tables").replaceChildren(...data.tables.map((sheet, i) => {
    const heads = sheet.columns.map(({ text, label: names }) =>
      el("th", { scope: "col", class: names ? null : "number" }, text));
    const cellOf = (one, { text, label: names }) =>
      names ? el("th", { scope: "row", class: textOf(one).length > 30 ? "long" : null }, // of CIL or detector
        titled(text.toLowerCase(), textOf(one)))
        : el("td", { class: "number" }, textOf(one));
    const rows = sheet.lines.map((line) => el("tr", {}, line.map((one, j) => cellOf(one, sheet.columns[j]))));
    const scroll = el(
      "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${sheet.title}, scrollable` },
      el("table", {}, el("thead", {}, el("tr", {}, heads)), el("tbody", {}, rows)),
    );
    return el(
      "details", { open: i === 0 }, el("summary", {}, sheet.title),
      el("div", { class: "card" }, saving(() => sheet), scrolling(scroll)),
      el("ul", { class: "note" }, [...sheet.missing, ...sheet.notes].map((note) => el("li", {}, note))),
    );
  }));
}
