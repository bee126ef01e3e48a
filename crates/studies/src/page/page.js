// Owns the layout and the controls of the report page: sections with the runs side by side, the theme, zoom and play by
// mouse, touch and keys.

const { tables, runs } = JSON.parse(document.getElementById("data").textContent);
const longest = largest(runs.map((run) => run.report.makespan_s)) || 1;
/** The keys and buttons of a chart whose time can be zoomed. */
function zoomable(made) {
  const { entry } = made;
  const range = () => entry.drawn.getOption().dataZoom.find((zoom) => zoom.id === "time");
  const zoom = (change) => {
    const { start, end } = range();
    let [from, to] = change(start, end);
    const width = Math.min(100, Math.max(0.001, to - from));
    from = Math.min(Math.max(0, from), 100 - width);
    entry.drawn.dispatchAction({ type: "dataZoom", dataZoomId: "time", start: from, end: from + width });
  };
  const around = (factor) => zoom((start, end) => {
    const [middle, half] = [(start + end) / 2, ((end - start) / 2) * factor];
    return [middle - half, middle + half];
  });
  const by = (share) => zoom((start, end) => [start + share * (end - start), end + share * (end - start)]);
  const actions = [
    ["Zoom in", ["+", "="], () => around(0.5)], ["Zoom out", ["-"], () => around(2)], ["Earlier", ["ArrowLeft"], () => by(-0.25)],
    ["Later", ["ArrowRight"], () => by(0.25)], ["All", ["0", "Home"], () => zoom(() => [0, 100])],
  ];
  entry.box.tabIndex = 0;
  entry.box.onkeydown = (event) => {
    const action = actions.find(([, keys]) => keys.includes(event.key));
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    action[2]();
    event.preventDefault();
  };
  const buttons = actions.map(([title, keys, act]) => element("button", { type: "button", onclick: act, "aria-keyshortcuts": keys.join(" ") }, title));
  made.prepend(element("div", { class: "tools" }, buttons));
  return made;
}

/** The network with a slider for its time, which can play. */
function playable(run) {
  let frame = 0;
  const chart = network(run, () => frame);
  if (!chart) return null;
  const made = figure("network", run, chart);
  const piece = run.seen.links.piece_ps * 1e-12;
  const clock = element("output", {});
  const slider = element("input", { type: "range", min: 0, max: chart.pieces - 1, value: 0, "aria-label": "Time of the picture", oninput: () => show(Number(slider.value)) });
  const show = (number) => {
    frame = number;
    slider.value = number;
    const words = `${seconds(frame * piece)} of ${seconds(run.report.makespan_s)}`;
    clock.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    const { entry } = made;
    entry.drawn?.setOption({ series: [{ data: entry.nodes(colours()), links: entry.edges(colours()) }] });
  };
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const play = element("button", { type: "button", onclick: () => {
    if (timer) return stop();
    if (frame >= chart.pieces - 1) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => (frame >= chart.pieces - 1 ? stop() : show(frame + 1)), 80);
  } }, "Play");
  made.prepend(element("div", { class: "tools" }, play, slider, clock));
  // The first picture is the interval with the highest load.
  const busy = (at) => sum(run.seen.links.links.map((link) => link.used[at] ?? 0));
  show(Array.from({ length: chart.pieces }, (_, at) => at).reduce((a, b) => (busy(b) > busy(a) ? b : a), 0));
  return made;
}

const meanShare = (run, of) => {
  const { ranks, makespan_s: makespan } = run.report;
  return ranks.length && makespan ? percent(sum(ranks.map(of)) / ranks.length / makespan) : null;
};

function overview(run) {
  const { report } = run;
  const { interval, job } = report;
  return [
    report.headline ? element("p", {}, report.headline) : null,
    figures([
      ["makespan", seconds(report.makespan_s)],
      [interval ? `${Math.round(100 * interval.level)} % interval` : "", interval ? `${seconds(interval.low_s)} to ${seconds(interval.high_s)}` : null],
      ["ranks", report.ranks.length.toLocaleString("en")],
      ["compute, average rank", meanShare(run, (rank) => rank.compute_s)],
      ["exposed communication, average rank", meanShare(run, (rank) => rank.exposed_comm_s)],
      ["sent, all ranks", bytes(sum(report.ranks.map((rank) => rank.bytes_sent)))],
      ["energy", report.energy_j === undefined ? null : joules(report.energy_j)],
      ["price", report.price === undefined ? null : `${Number(report.price.toPrecision(3))}`],
      ["tokens per second", job ? Number(job.tokens_per_s.toPrecision(4)).toLocaleString("en") : null],
      ["model FLOPs utilization", job ? percent(job.mfu) : null],
      ["compute comes from", report.manifest.compute || null],
    ]),
    run.seen?.critical ? note(run.seen.critical.summary) : null,
    figure("origins", run, origins(run)),
    report.warnings.map((warning) => element("p", { class: "problem" }, `Warning: ${warning}`)),
    run.missing.map((words) => element("p", { class: "note" }, words)),
  ];
}

/** The columns of a table of the report that some row has a value of. `words`: names for null, by column. */
const columnsOf = (table, rows, words = {}) =>
  tables[table].filter(({ name }) => words[name] || rows.some((row) => (row[name] ?? null) !== null))
    .map(({ name, title, kind, meaning }) => column(title, (row) => row[name] ?? words[name] ?? null, SHOW[kind], meaning));

function ranksSection(run) {
  const { ranks, streams = [] } = run.report;
  const table = sortableTable(`Ranks of ${run.name}`, columnsOf("ranks", ranks), ranks);
  const ofStreams = streams.length === 0 ? null : sortableTable(`Streams of GPUs of ${run.name}`, columnsOf("streams", streams, { stream: "all" }), streams);
  return [figure("ranks", run, ranksTime(run)), details("Table of ranks", table), ofStreams && details("Table of streams", ofStreams)];
}

function timelineSection(run) {
  const chart = run.seen && timeline(run, longest);
  if (!chart) return null;
  const left = run.seen.timeline.ranks_left_out;
  const joined = run.seen.timeline.rows.some((row) => row.marks.some((mark) => mark.length === 5));
  return [
    zoomable(figure("timeline", run, chart)),
    left ? note(`The first ${run.report.ranks.length - left} ranks are shown, of ${run.report.ranks.length}.`) : null,
    joined ? note("Spans that are too short to be told apart are one mark, divided by what they are; trace.json in the run's folder has each.") : null,
  ];
}

function linksSection(run) {
  const chart = run.seen?.links && linksOverTime(run);
  if (!chart) return null;
  const { links, piece_ps: piece } = run.seen.links;
  const pieces = Math.max(1, run.seen.makespan_ps / piece);
  const table = sortableTable(`Links of ${run.name}`, [
    column("link", (link) => link.name), column("bandwidth", (link) => link.bandwidth, bitRate), column("carried, headers included", (link) => link.bytes, bytes),
    column("used on average", (link) => sum(link.used) / 1000 / pieces, percent), column("at most", (link) => largest(link.used) / 1000, percent),
  ], links);
  return [playable(run), figure("links", run, chart), details("Table of links", table)];
}

function operationsSection(run) {
  const bySize = run.seen ? operationsBySize(run) : null;
  const overall = operationsTime(run);
  if (!bySize && !overall) return null;
  const sizes = bySize && sortableTable(`Operations of ${run.name} by size`, [
    column("operation", (row) => row.operation), column("ranks", (row) => row.members), column("size", (row) => row.bytes, bytes),
    column("count", (row) => row.count, SHOW.count), column("time", (row) => row.time_s, seconds),
    column("until the last rank came", (row) => row.late_s, seconds), column("at least on this network", (row) => row.bound_s, seconds),
    column("above the bound, all together", (row) => (row.bound_s === null ? null : row.count * Math.max(0, row.time_s - row.late_s - row.bound_s)), seconds),
  ], run.seen.operations);
  const { operations } = run.report;
  const groups = sortableTable(`Operations of ${run.name} by group, summed over ranks`, columnsOf("operations", operations), operations);
  return [
    figure("operations-by-size", run, bySize), sizes && details("Table of operations by size", sizes),
    figure("operations", run, overall), details("Table of operations by group", groups),
  ];
}

function phasesSection(run) {
  const chart = phases(run);
  if (!chart) return null;
  const table = sortableTable(`Ranges of ${run.name}`, columnsOf("phases", run.report.phases), run.report.phases);
  return [figure("phases", run, chart), details("Table of ranges", table)];
}

function memorySection(run) {
  const peaks = memoryPeaks(run);
  if (!peaks) return null;
  const over = run.seen?.memory ?? [];
  const holder = element("div");
  const made = [];
  // All charts are on the page, but only one is shown.
  over.forEach((chart, number) => {
    const of = figure(`memory-rank-${chart.rank}`, run, memoryOverTime(run, chart, longest));
    of.hidden = number > 0;
    made.push(of);
    holder.append(of);
  });
  const choice = element("select", { onchange: () => {
    made.forEach((of, number) => { of.hidden = number !== choice.selectedIndex; });
    draw(made[choice.selectedIndex].entry);
  } }, over.map((chart) => element("option", {}, `rank ${chart.rank}`)));
  const { memory } = run.report;
  const table = sortableTable(`Memory of ${run.name} at the peaks of its ranks`, columnsOf("memory", memory), memory);
  return [
    over.length > 1 ? element("p", { class: "tools" }, element("label", {}, "Over time: ", choice)) : null,
    over.length ? holder : null, figure("memory", run, peaks), details("Table of memory", table),
  ];
}

function energySection(run) {
  const chart = energy(run);
  return chart && [figure("energy", run, chart)];
}

function criticalSection(run) {
  const path = pathOf(run);
  if (!path || path.kinds.length === 0) return null;
  const spans = path.parts.some((part) => part.count) ? [column("spans", (part) => part.count, SHOW.count)] : [];
  const table = sortableTable(`Parts of the critical path of ${run.name}`, [...columnsOf("critical_path", path.parts), ...spans], path.parts);
  return [figure("critical-path", run, pathKinds([run])), details("Table of its parts", table)];
}

function whatIfSection(run) {
  if (!run.what_if) return null;
  const table = sortableTable(`Changes to ${run.name}`, [
    column("change", (row) => row.options.join(" ")), column("makespan", (row) => row.makespan_s, seconds),
    column("gain", (row) => row.gain_s, seconds), column("share", (row) => row.gain, signedPercent),
  ], run.what_if.changes);
  return [
    figure("what-if", run, whatIf(run)) ?? note("None of the changes that were tried makes a difference."),
    details("Table of all changes", table),
    run.what_if.warnings.map((warning) => element("p", { class: "problem" }, `Warning: ${warning}`)),
    run.what_if.refused.map(({ options, error }) => note(`Not possible: ${options.join(" ")}: ${error.split("\n")[0]}`)),
  ];
}

function originSection(run) {
  const { manifest, digest } = run.report;
  return [
    figures([["seed", `${manifest.seed}`], ["versions", Object.entries(manifest.versions).map((pair) => pair.join(" ")).join(", ")]]),
    element("pre", {}, manifest.command.join(" ")),
    details("Cluster", element("pre", {}, manifest.cluster)),
    note(`Digest ${digest}`),
    run === runs[0] ? details("Licences of the chart library", element("pre", {}, document.getElementById("notice").textContent.trim())) : null,
  ];
}

/** Comparison of the runs, above the sections of single runs. */
function comparison() {
  const first = runs[0].report.makespan_s;
  const table = sortableTable("Runs", [
    column("run", (run) => run.name), column("makespan", (run) => run.report.makespan_s, seconds),
    column("against the first", (run) => (first > 0 ? run.report.makespan_s / first - 1 : null), signedPercent),
    column("ranks", (run) => run.report.ranks.length), column("energy", (run) => run.report.energy_j ?? null, joules),
    column("sent", (run) => sum(run.report.ranks.map((rank) => rank.bytes_sent)), bytes),
    column("compute comes from", (run) => run.report.manifest.compute),
  ], runs);
  const known = runs.filter((run) => pathOf(run)?.kinds.length);
  return element("div", { class: "run" },
    figure("makespans", null, makespans(runs)), table, figure("average-ranks", null, averageRanks(runs)),
    known.length > 1 ? figure("critical-paths", null, pathKinds(known)) : null);
}

const SECTIONS = [
  ["overview", "Overview", null, overview],
  ["timeline", "Timeline", "What each rank does when, with the critical path above: what the end of the run had to wait for. Zoom with the buttons, with + and -, or with Ctrl and the wheel.", timelineSection],
  ["ranks", "Ranks", "On every rank the parts add up to the makespan. Late peer: blocked in a call that another rank has not entered yet.", ranksSection],
  ["links", "Links", "Each link's use, headers included, as a share of its bandwidth in the cluster file.", linksSection],
  ["operations", "Operations", "A circle is the average time from the first rank's beginning to the last rank's end, the dash below it the least that the hosts' links allow any algorithm.", operationsSection],
  ["phases", "Phases", "Ranges that the program names with torch.profiler.record_function.", phasesSection],
  ["memory", "Memory", null, memorySection],
  ["energy", "Energy", null, energySection],
  ["critical-path", "Critical path", "Each span of it is what the next one had to wait for: made shorter, the run ends as much sooner, until another path is longer.", criticalSection],
  ["what-if", "What if?", "The run simulated again with one thing changed at a time.", whatIfSection],
  ["origin", "Origin", null, originSection],
];
/** Sentences for sections without data of any run. */
const ABSENT = {
  timeline: "No timeline: the events of these runs are not known.", links: "The use of links is not known.", operations: "These runs have no operations of process groups.",
  phases: "These programs name no ranges (torch.profiler.record_function).", memory: "What the ranks held in memory is not known: their operators were not captured.",
  energy: "What the devices draw is not known: the cluster file gives them no power.", "critical-path": "The critical path is not known.", "what-if": "No changes were tried.",
};

function build() {
  const main = document.getElementById("main");
  const contents = document.getElementById("contents");
  document.title = `${runs.map((run) => run.name).join(", ")} – Uniference report`;
  for (const [id, title, about, of] of SECTIONS) {
    const shown = runs.map((run) => of(run));
    const section = element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title));
    contents.append(element("a", { href: `#${id}` }, title));
    main.append(section);
    if (shown.every((nodes) => nodes === null)) {
      section.append(note(ABSENT[id]));
      continue;
    }
    if (about) section.append(element("p", { class: "about" }, about));
    if (id === "overview" && (runs.length > 1 || runs[0].report.interval)) section.append(runs.length > 1 ? comparison() : element("div", { class: "run" }, figure("makespan", null, makespans(runs))));
    const nodes = (run) => shown[runs.indexOf(run)] ?? [note("Not known of this run.")];
    section.append(element("div", { class: "runs" }, runs.map((run) => element("div", { class: "run" }, element("h3", {}, run.name), nodes(run).flat()))));
  }
}

start(build);
