// Owns the page of a sweep: lines, heat map and Pareto front of its trials, the controls, and the table of all trials.

const study = JSON.parse(document.getElementById("data").textContent);
const columnOf = new Map(study.columns.map((column) => [column.name, column]));
const cell = (name, row) => columnOf.get(name)?.cells[row] ?? null;
const rows = (columnOf.get("trial")?.cells ?? []).map((_, row) => row);
const finished = rows.filter((row) => cell("status", row) === "finished");
const isNumber = (name) => finished.some((row) => typeof cell(name, row) === "number") && finished.every((row) => ["number", "object"].includes(typeof cell(name, row)));
const measures = study.columns.map(({ name }) => name).filter((name) => !study.parameters.includes(name) && !["trial", "record"].includes(name) && isNumber(name));
/** The values of each parameter: numbers by size, others in the order of the trials. */
const valuesOf = new Map(study.parameters.map((name) => {
  const values = [...new Set(rows.map((row) => cell(name, row)))];
  return [name, values.every((value) => typeof value === "number") ? values.sort((a, b) => a - b) : values];
}));
const varied = study.parameters.filter((name) => valuesOf.get(name).length > 1);
/** Maximum number of values of a parameter that are drawn as names; more are drawn as numbers. */
const MOST_NAMES = 40;

/** The function that formats a measure. */
const shower = (name) =>
  SHOW[columnOf.get(name).kind] ?? ((value) => (value === null ? "not known" : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 })));
const shown = (value) => (value === null ? "not known" : `${value}`);
const settings = (row) => varied.map((name) => `${name} ${shown(cell(name, row))}`).join(", ");
/** Ratio of the largest to the least number beyond which an axis is logarithmic. */
const MOST_LINEAR = 30;
function measureAxis(colours, name, rows, more = {}) {
  const numbers = rows.map((row) => cell(name, row)).filter((number) => number !== null);
  const axis = valueAxis(colours, shower(name), { min: undefined, ...more });
  if (Math.min(...numbers) > 0 && Math.max(...numbers) > MOST_LINEAR * Math.min(...numbers)) return { ...axis, type: "log", scale: true };
  return { ...axis, min: 0 };
}
/** Names of measures that are better if they are higher; all others are better if they are lower. */
const MORE_IS_BETTER = /per_s|throughput|mfu|rate/;

/** The content of the charts by their controls. */
const choice = { measure: measures.includes("makespan_s") ? "makespan_s" : measures[0] };
const bySize = [...varied].sort((a, b) => valuesOf.get(b).length - valuesOf.get(a).length);
[choice.across, choice.series] = [bySize[0] ?? null, bySize[1] ?? null];
choice.fixed = new Map(varied.map((name) => [name, valuesOf.get(name)[0]]));
choice.cost = ["price", "energy_j", "memory_bytes", "bytes_sent"].find((name) => measures.includes(name)) ?? measures.find((name) => name !== choice.measure) ?? choice.measure;

/** Parameters other than those of the axis and of the lines; the trials with their chosen values. */
const others = () => varied.filter((name) => name !== choice.across && name !== choice.series);
const chosen = () => finished.filter((row) => others().every((name) => cell(name, row) === choice.fixed.get(name)));

function linesChart() {
  const { measure, across, series } = choice;
  const show = shower(measure);
  const marks = valuesOf.get(across);
  const asNumbers = marks.length > MOST_NAMES && marks.every((value) => typeof value === "number");
  const drawn = asNumbers ? finished : chosen();
  const groups = series && !asNumbers ? valuesOf.get(series) : [null];
  const of = (group) => drawn.filter((row) => group === null || cell(series, row) === group);
  const least = drawn.filter((row) => cell(measure, row) !== null).sort((a, b) => cell(measure, a) - cell(measure, b))[0];
  const text = `${measure} over ${across}${series && !asNumbers ? `, a line for each ${series}` : ""}. ${least === undefined ? "It is not known." : `The least is ${show(cell(measure, least))}, with ${settings(least)}.`}`;
  return {
    text, height: 380,
    option: (colours) => ({
      ...common(colours, text, { trigger: "item", formatter: (item) => lines(settings(item.data.row), `${measure}: ${show(cell(measure, item.data.row))}`) }),
      legend: groups.length > 1 ? legend(colours) : undefined,
      grid: { left: 80, right: 24, top: 40, bottom: 48 },
      xAxis: {
        type: asNumbers ? "value" : "category", data: asNumbers ? undefined : marks.map(shown), name: across, nameLocation: "middle", nameGap: 30,
        ...axisColours(colours), scale: true,
      },
      yAxis: measureAxis(colours, measure, drawn),
      series: groups.map((group, number) => ({
        name: group === null ? measure : `${series} ${shown(group)}`, type: asNumbers ? "scatter" : "line", symbolSize: 8, connectNulls: true,
        itemStyle: { color: colours.series[number % colours.series.length] }, lineStyle: { color: colours.series[number % colours.series.length] },
        data: of(group).map((row) => ({ value: [asNumbers ? cell(across, row) : marks.indexOf(cell(across, row)), cell(measure, row)], row })),
      })),
    }),
  };
}

function heatMap() {
  const { measure, across, series } = choice;
  if (!series || valuesOf.get(across).length > MOST_NAMES || valuesOf.get(series).length > MOST_NAMES) return null;
  const show = shower(measure);
  const [columns, bands] = [valuesOf.get(across), valuesOf.get(series)];
  const drawn = chosen().filter((row) => cell(measure, row) !== null);
  const numbers = drawn.map((row) => cell(measure, row));
  const text = `${measure} by ${across} and ${series}, from ${show(Math.min(...numbers))} to ${show(Math.max(...numbers))}.`;
  return {
    text, height: bands.length * 34 + 130,
    option: (colours, width) => ({
      ...common(colours, text, { formatter: (item) => lines(settings(item.data.row), `${measure}: ${show(item.data.value[2])}`) }),
      grid: { left: labelWidth(width, bands.map(shown)) + 40, right: 24, top: 12, bottom: 90 },
      xAxis: { type: "category", data: columns.map(shown), name: across, nameLocation: "middle", nameGap: 28, ...axisColours(colours) },
      yAxis: { ...nameAxis(colours, bands.map(shown), width), name: series, nameLocation: "start", nameTextStyle: { color: colours.faint } },
      visualMap: {
        min: Math.min(...numbers), max: Math.max(...numbers), calculable: false, orient: "horizontal", left: "center", bottom: 4, formatter: (value) => show(value),
        inRange: { color: colours.ramp }, textStyle: { color: colours.text },
      },
      series: [{
        type: "heatmap", data: drawn.map((row) => ({ value: [columns.indexOf(cell(across, row)), bands.indexOf(cell(series, row)), cell(measure, row)], row })),
        label: { show: columns.length <= 12, color: colours.text, textBorderColor: colours.sheet, textBorderWidth: 2, formatter: (item) => show(item.data.value[2]) },
      }],
    }),
  };
}

/** Rows that no other row beats in both measures. */
function front(first, second) {
  const signs = [first, second].map((name) => (MORE_IS_BETTER.test(name) ? -1 : 1));
  const known = finished.filter((row) => cell(first, row) !== null && cell(second, row) !== null);
  const point = (row) => [signs[0] * cell(first, row), signs[1] * cell(second, row)];
  const sorted = [...known].sort((a, b) => point(a)[0] - point(b)[0] || point(a)[1] - point(b)[1]);
  let best = Infinity;
  return [known, sorted.filter((row) => point(row)[1] < best && ((best = point(row)[1]), true))];
}

function paretoChart() {
  const { measure, cost } = choice;
  if (measure === cost) return null;
  const [known, best] = front(cost, measure);
  const [showX, showY] = [shower(cost), shower(measure)];
  const better = (name) => `${MORE_IS_BETTER.test(name) ? "more" : "less"} ${name}`;
  const text = `${counted(best.length, "trial")} of ${known.length} ${best.length === 1 ? "is" : "are"} on the Pareto front of ${better(cost)} and ${better(measure)}: no other trial is better in both. ${best.slice(0, 8).map((row) => `${settings(row)}: ${showX(cell(cost, row))}, ${showY(cell(measure, row))}`).join("; ")}.`;
  const data = (rows) => rows.map((row) => ({ value: [cell(cost, row), cell(measure, row)], row }));
  return {
    text, height: 380,
    option: (colours) => ({
      ...common(colours, text, { formatter: (item) => lines(settings(item.data.row), `${cost}: ${showX(item.data.value[0])}`, `${measure}: ${showY(item.data.value[1])}`) }),
      legend: legend(colours),
      grid: { left: 80, right: 32, top: 60, bottom: 48 },
      xAxis: measureAxis(colours, cost, known, { name: cost, nameLocation: "middle", nameGap: 30 }),
      yAxis: measureAxis(colours, measure, known, { name: measure }),
      series: [
        { name: "trials", type: "scatter", symbolSize: 8, data: data(known), itemStyle: { color: colours.series[8] } },
        { name: "Pareto front", type: "line", step: "end", symbolSize: 10, data: data(best), itemStyle: { color: colours.series[1] }, lineStyle: { color: colours.series[1] } },
      ],
    }),
  };
}

/** A select of names, which changes the choice and draws the charts anew. */
function control(title, names, current, change) {
  const select = element("select", { onchange: () => { change(names[select.selectedIndex]); redraw(); } },
    names.map((name) => element("option", name === current ? { selected: "" } : {}, shown(name))));
  return element("label", {}, `${title}: `, select, " ");
}

function controls() {
  return element("div", { class: "tools" },
    control("Measure", measures, choice.measure, (name) => { choice.measure = name; }),
    varied.length ? control("Across", varied, choice.across, (name) => {
      if (choice.series === name) choice.series = choice.across;
      choice.across = name;
    }) : null,
    varied.length > 1 ? control("Lines", varied.filter((name) => name !== choice.across), choice.series, (name) => { choice.series = name; }) : null,
    others().map((name) => control(name, valuesOf.get(name), choice.fixed.get(name), (value) => { choice.fixed.set(name, value); })),
    measures.length > 1 ? control("Pareto front with", measures, choice.cost, (name) => { choice.cost = name; }) : null);
}

const CHARTS = [["lines", "Lines", linesChart], ["heat-map", "Heat map", heatMap], ["pareto", "Pareto front", paretoChart]];

/** Replaces the controls and charts by those of the current choice. */
function redraw() {
  charts.forEach((chart) => chart.drawn?.dispose());
  charts.length = 0;
  document.getElementById("controls").replaceChildren(controls());
  for (const [id, , of] of CHARTS) {
    const chart = varied.length && measures.length ? of() : null;
    document.getElementById(`${id}-chart`).replaceChildren(chart ? figure(id, null, chart) : note("There is nothing to draw with this choice."));
  }
  paint();
}

function overview() {
  const failed = rows.length - finished.length;
  const best = finished.filter((row) => cell("makespan_s", row) !== null).sort((a, b) => cell("makespan_s", a) - cell("makespan_s", b))[0];
  const count = (source) => finished.filter((row) => cell("source", row) === source).length;
  return [
    figures([
      ["trials", rows.length.toLocaleString("en")], ["runs", count("run").toLocaleString("en")], ["replays", count("replay").toLocaleString("en")],
      ["failed", failed ? failed.toLocaleString("en") : null],
      ["least makespan", best === undefined ? null : `${seconds(cell("makespan_s", best))}`], ["with", best === undefined ? null : settings(best)],
    ]),
    failed ? note("Trials that failed are in the table, with the reason.") : null,
  ];
}

function trials() {
  const named = ["trial", ...study.parameters, ...study.columns.map(({ name }) => name).filter((name) => name !== "trial" && !study.parameters.includes(name) && !["digest", "command"].includes(name))];
  const show = (name) => (measures.includes(name) ? shower(name) : undefined);
  return sortableTable(`Trials of ${study.name}`, named.map((name) => column(name, (row) => cell(name, row), show(name), columnOf.get(name)?.meaning)), rows);
}

function build() {
  const main = document.getElementById("main");
  const contents = document.getElementById("contents");
  document.title = `${study.name} – Uniference sweep`;
  const section = (id, title, ...children) => {
    contents.append(element("a", { href: `#${id}` }, title));
    main.append(element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title), element("div", { class: "run" }, ...children)));
  };
  section("overview", "Overview", element("h3", {}, study.name), overview(), element("div", { id: "controls" }));
  for (const [id, title] of CHARTS) section(id, title, element("div", { id: `${id}-chart` }));
  section("trials", "Trials", trials());
  section("origin", "Origin", note("The same table is in results.csv and results.parquet; each trial has a folder with its report."),
    details("Licences of the chart library", element("pre", {}, document.getElementById("notice").textContent.trim())));
  redraw();
}

start(build);
