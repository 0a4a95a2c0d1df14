// Tables as files. A sheet is { name, title, columns: [{ text, label }], lines: [[cell]], notes, missing }: `label`
// columns have names, others numbers; a cell is a text, or { mean, std, rank }, whose rank 1 to 3 is marked.

function csv(sheet) {
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  // A name that a spreadsheet would take for a formula has an apostrophe in front, as in the report's tables.
  const formula = (text) => /^[=+@\t\r-]/.test(text) && !/^[+-]?\d+(\.\d*)?$/.test(text);
  const name = (text) => (formula(text) ? `'${text}` : text);
  const number = (value) => ((value ?? null) === null ? "" : String(Number(value.toPrecision(6))));
  const spreads = sheet.columns.map((_, i) => sheet.lines.some((line) => (line[i]?.std ?? null) !== null));
  const heads = sheet.columns.map(({ text }) => name(text));
  const head = heads.flatMap((text, i) => (spreads[i] ? [text, `${text} std`] : [text]));
  const lines = sheet.lines.map((line) => line.flatMap((one, i) => {
    if (typeof one === "string") return spreads[i] ? [name(one), ""] : [name(one)];
    return spreads[i] ? [number(one.mean), number(one.std)] : [number(one.mean)];
  }));
  if (sheet.missing.length) { // on every line, so that whoever takes some of them takes it too
    head.push("missing");
    for (const line of lines) line.push(name(sheet.missing.join(" ")));
  }
  return [head, ...lines].map((line) => `${line.map(quoted).join(",")}\n`).join("");
}

const escaped = (text) => [...text].map((sign) => data.latex[sign] ?? sign).join("");
function latex(sheet) {
  const marks = ["", "\\underline{\\textbf{", "\\textbf{", "\\underline{"];
  const shown = (one) => {
    const text = escaped(textOf(one));
    const mark = marks[one.rank ?? 0] ?? "";
    return `${mark}${text}${"}".repeat(mark.split("{").length - 1)}`;
  };
  const row = (cells) => `${cells.join(" & ")} \\\\`;
  return [
    "\\begin{table}", "\\centering", `\\caption{${escaped(sheet.title)}}`,
    `\\begin{tabular}{${sheet.columns.map((column) => (column.label ? "l" : "r")).join("")}}`, "\\hline",
    row(sheet.columns.map((column) => escaped(column.text))), "\\hline",
    ...sheet.lines.map((line) => row(line.map(shown))), "\\hline", "\\end{tabular}",
    ...[...sheet.missing, ...sheet.notes].map((note) => `\\par{\\footnotesize ${escaped(note)}}`), "\\end{table}", "",
  ].join("\n");
}
const textOf = (one) => {
  if (typeof one === "string") return one;
  const text = one.text ?? percent(one.mean);
  return one.text || (one.std ?? null) === null ? text : `${text} ± ${percent(one.std)}`;
};

// Two buttons that save the table that `sheet` returns.
function saving(sheet) {
  const save = (ending, written) => () => {
    const made = sheet();
    const address = URL.createObjectURL(new Blob([written(made)], { type: "text/plain" }));
    el("a", { href: address, download: `${made.name}.${ending}` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  };
  const button = (text, ending, written) =>
    el("button", { type: "button", onclick: save(ending, written) }, text);
  const both = [button("CSV", "csv", csv), button("LaTeX", "tex", latex)];
  return el("span", { class: "saving" }, "Save as ", both);
}
