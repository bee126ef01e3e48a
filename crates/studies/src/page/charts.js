// Owns the charts: for each, a function of colours and width that returns ECharts' options, the height, and a sentence
// with the same content. page.js places them on the page.

// Colours that any colour vision tells apart (Okabe and Ito's set, shifted for contrast), in the order of MarkKind.
const COLOURS = {
  light: {
    text: "#1c2430", faint: "#566173", line: "#d9dee6", sheet: "#ffffff", bound: "#1c2430",
    kinds: ["#2f6fc4", "#d5722a", "#e9bf45", "#b4bcc8", "#4a9c8c", "#9a7bc0"],
    noData: "#a4457f", ramp: ["#eef2f7", "#f3d27a", "#e0782f", "#9c2a1f"],
    series: ["#2f6fc4", "#d5722a", "#3f9b76", "#9a7bc0", "#c0487a", "#8a8f3a", "#5aa5cf", "#7d6a58", "#b4bcc8"],
  },
  dark: {
    text: "#e4e8ee", faint: "#a3adbc", line: "#343d4a", sheet: "#1b2129", bound: "#ffffff",
    kinds: ["#6ba0ea", "#eb924f", "#f0d070", "#5a6473", "#5cb8a6", "#b79be0"],
    noData: "#d87fb4", ramp: ["#27303b", "#8a6a24", "#d9782f", "#ffd0a0"],
    series: ["#6ba0ea", "#eb924f", "#62bf98", "#b79be0", "#e57fa8", "#bcc165", "#86c5e8", "#b09a86", "#5a6473"],
  },
};
const KIND_NAMES = ["compute", "exposed communication", "late peer", "sleep and store", "operation under way", "range"];
/** Index in `series` of the names that have the same colour in all charts. */
const SERIES = {
  compute: 0, bandwidth: 1, latency: 2, handshake: 3, contention: 4, queueing: 5, library: 6, poll: 7,
  parameters: 0, gradients: 1, activations: 2, optimizer: 3, kv_cache: 4, buffers: 5, host: 6, context: 7,
};
const coloured = (name) => (colours) => colours.series[SERIES[name] ?? colours.series.length - 1];
const html = echarts.format.encodeHTML;
const lines = (...parts) => parts.filter(Boolean).map((part) => html(part)).join("<br>");
const trimmed = (value) => seconds(value, 7);

/** Options of all charts. */
function common(colours, text, tooltip) {
  return {
    animation: false,
    textStyle: { color: colours.text, fontFamily: "system-ui, sans-serif", fontSize: 12 },
    aria: { enabled: true, label: { description: text } },
    color: colours.series,
    tooltip: {
      confine: true, backgroundColor: colours.sheet, borderColor: colours.line,
      textStyle: { color: colours.text, fontSize: 12 }, ...tooltip,
    },
  };
}

const legend = (colours, more = {}) => ({
  top: 0, left: 0, type: "scroll", textStyle: { color: colours.text }, itemWidth: 14, itemHeight: 10,
  pageTextStyle: { color: colours.text }, pageIconColor: colours.text, pageIconInactiveColor: colours.faint, ...more,
});
const axisColours = (colours) => ({
  axisLine: { lineStyle: { color: colours.line } }, axisLabel: { color: colours.faint, hideOverlap: true },
  splitLine: { lineStyle: { color: colours.line } }, nameTextStyle: { color: colours.faint },
});
/** An axis of numbers. @returns {any} an option of ECharts */
function valueAxis(colours, show, more = {}) {
  const { axisLabel, ...rest } = axisColours(colours);
  return { type: "value", min: 0, ...rest, axisLabel: { ...axisLabel, formatter: (value) => show(value, 3) }, ...more };
}
/** An axis of bytes, with its marks at powers of 2. */
function byteAxis(colours, most, marks = 5) {
  const interval = 2 ** Math.ceil(Math.log2(Math.max(1, most) / marks));
  return valueAxis(colours, bytes, { interval, max: Math.ceil(Math.max(1, most) / interval) * interval });
}
function nameAxis(colours, names, width, more = {}) {
  return {
    type: "category", data: names, inverse: true, axisTick: { show: false },
    axisLine: { lineStyle: { color: colours.line } },
    axisLabel: { color: colours.text, width: labelWidth(width, names), overflow: "truncate", interval: 0 }, ...more,
  };
}
const labelWidth = (width, names) => Math.min(largest(names.map((name) => name.length)) * 7.2 + 10, width < 520 ? 100 : 300);
const grid = (width, names, more = {}) => ({ left: labelWidth(width, names) + 12, right: 24, top: 34, bottom: 30, ...more });

/** A slider at the right for rows that do not fit. */
function rowSlider(rows, most) {
  if (rows <= most) return [];
  return [{ type: "slider", yAxisIndex: 0, right: 2, width: 14, startValue: 0, endValue: most - 1, brushSelect: false, showDetail: false }];
}

/**
 * Horizontal stacked bars, one per name. `show` formats a value, and `tip` returns a line for the bar at an index.
 *
 * @param {{names: string[], series: {name: string, values: number[], color?: (colours: any) => string}[],
 *   show: (value: number) => string, text: string, most?: number, tip?: (at: number) => string}} bars
 */
function stackedBars({ names, series, show, text, most = 40, tip }) {
  const rows = Math.min(names.length, most);
  const longest = largest(names.map((_, at) => sum(series.map(({ values }) => values[at]))));
  return {
    text,
    height: rows * 24 + 76,
    option: /** @returns {any} */ (colours, width) => ({
      ...common(colours, text, {
        trigger: "axis", axisPointer: { type: "shadow" },
        formatter: (items) => lines(names[items[0].dataIndex], ...items.filter((item) => item.value).map((item) => `${item.seriesName}: ${show(item.value)}`), tip?.(items[0].dataIndex)),
      }),
      legend: series.length > 1 ? legend(colours) : undefined,
      grid: grid(width, names, { top: series.length > 1 ? 34 : 8, right: names.length > most ? 40 : 24 }),
      xAxis: show === bytes ? byteAxis(colours, longest, width < 520 ? 3 : 5) : valueAxis(colours, show, { splitNumber: width < 520 ? 3 : 5 }),
      yAxis: nameAxis(colours, names, width),
      dataZoom: rowSlider(names.length, most),
      series: series.map(({ name, color, values }, number) => ({
        name, type: "bar", stack: "all", data: values, barMaxWidth: 18,
        itemStyle: { color: color ? color(colours) : colours.series[number % colours.series.length] },
      })),
    }),
  };
}

/** The makespans of runs, each with the interval in which the real makespan should lie. */
function makespans(runs) {
  const names = runs.map((run) => run.name);
  const of = runs.map((run) => run.report.makespan_s);
  const intervals = runs.map((run) => run.report.interval ?? null);
  const words = (run) => {
    const interval = run.report.interval;
    return `${run.name}: ${seconds(run.report.makespan_s)}${interval ? `, ${percent(interval.level)} between ${seconds(interval.low_s)} and ${seconds(interval.high_s)}` : ""}`;
  };
  const text = `Makespans. ${runs.map(words).join("; ")}.`;
  const whisker = (colours) => ({
    type: "custom", name: "interval", encode: { x: [0, 1], y: 2 },
    data: intervals.flatMap((interval, row) => (interval ? [[interval.low_s, interval.high_s, row]] : [])),
    renderItem: (params, api) => {
      const [low, high] = [0, 1].map((place) => api.coord([api.value(place), api.value(2)]));
      const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colours.bound, lineWidth: 2 } });
      return { type: "group", children: [line(low[0], low[1], high[0], high[1]), ...[low, high].map(([x, y]) => line(x, y - 6, x, y + 6))] };
    },
    z: 5, silent: true,
  });
  return {
    text,
    height: runs.length * 34 + 50,
    option: (colours, width) => ({
      ...common(colours, text, { formatter: (item) => html(words(runs[item.dataIndex])) }),
      grid: grid(width, names, { top: 8 }),
      xAxis: valueAxis(colours, seconds, { max: largest([...of, ...intervals.map((interval) => interval?.high_s ?? 0)]) * 1.05, splitNumber: width < 520 ? 3 : 5, axisLabel: { color: colours.faint, hideOverlap: true, showMaxLabel: false, formatter: (value) => seconds(value, 3) } }),
      yAxis: nameAxis(colours, names, width),
      series: [{ type: "bar", data: of, barMaxWidth: 20, itemStyle: { color: colours.kinds[0] } }, whisker(colours)],
    }),
  };
}

/** Origins of the seconds of compute. */
function origins(run) {
  const of = new Map();
  for (const { origin, seconds: time } of run.report.compute ?? []) of.set(origin, (of.get(origin) ?? 0) + time);
  const total = sum([...of.values()]);
  // A single origin is in the headline.
  if (!(total > 0) || of.size < 2) return null;
  const shares = [...of].sort((a, b) => b[1] - a[1]).filter(([, time]) => time > 0);
  return stackedBars({
    names: ["compute"],
    series: shares.map(([name, time]) => ({ name, values: [time] })),
    show: seconds,
    text: `Where the ${seconds(total)} of compute of all ranks come from: ${shares.map(([name, time]) => `${name} ${percent(time / total)}`).join(", ")}.`,
  });
}

/** The ranks' activities over time. All runs of a page have the same time axis. */
function timeline(run, longest) {
  const { rows, names, spans } = run.seen.timeline;
  if (rows.length === 0) return null;
  const labels = rows.map(({ rank, label }) => (rank === null ? label : `rank ${rank} ${label}`));
  const marks = rows.flatMap((row, number) => row.marks.map((mark) => ({ row: number, mark })));
  const ps = 1e-12;
  const data = marks.map(({ row, mark: [start, length] }) => [row, start * ps, (start + length) * ps]);
  const has = (mark, kind) => (mark.length === 4 ? mark[3] === kind : mark[4][kind] > 0);
  const kinds = KIND_NAMES.map((_, kind) => kind).filter((kind) => marks.some(({ mark }) => has(mark, kind)));
  // Operations of several groups overlap: if the next mark covers this one, neither name would be readable.
  const isCovered = marks.map(({ row, mark: [start, length] }, at) => [at - 1, at + 1].some((other) => {
    const next = marks[other];
    return next?.row === row && next.mark[0] < start + length && start < next.mark[0] + next.mark[1];
  }));
  const most = 36;
  const text = `Timeline of ${counted(new Set(rows.map((row) => row.rank)).size - (rows[0].rank === null ? 1 : 0), "rank")}: ${counted(spans, "span")} in ${counted(rows.length, "row")}, from 0 to ${seconds(run.seen.makespan_ps * ps)}.`;
  const describe = ({ row, mark }) => {
    const [start, length, name] = mark;
    const when = `${trimmed(start * ps)} + ${seconds(length * ps)}`;
    if (mark.length === 4) return lines(labels[row], `${names[name]}${KIND_NAMES[mark[3]] === names[name] ? "" : ` (${KIND_NAMES[mark[3]]})`}`, when);
    const shares = mark[4].map((time, kind) => [kind, time / length]).filter(([, share]) => share > 0);
    return lines(labels[row], `${counted(mark[3], "span")}, the longest: ${names[name]}`, ...shares.map(([kind, share]) => `${KIND_NAMES[kind]}: ${percent(share)}`), when);
  };
  const option = (colours, width) => {
    const draw = (params, api) => {
      const { row, mark } = marks[params.dataIndex];
      const area = params.coordSys;
      const [left, middle] = api.coord([api.value(1), row]);
      const [right] = api.coord([api.value(2), row]);
      const height = api.size([0, 1])[1] * 0.78;
      const clip = (x, y, w, h) => echarts.graphic.clipRectByRect({ x, y, width: w, height: h }, { x: area.x, y: area.y, width: area.width, height: area.height });
      const [from, to] = [Math.max(left, area.x), Math.min(Math.max(right, left + 1), area.x + area.width)];
      if (mark.length === 4) {
        const shape = clip(from, middle - height / 2, to - from, height);
        if (!shape) return undefined;
        const drawn = { type: "rect", shape, style: { fill: colours.kinds[mark[3]] } };
        if (to - from > 44 && !isCovered[params.dataIndex]) {
          drawn.textContent = { style: { text: names[mark[2]], width: to - from - 8, overflow: "truncate", fill: mark[3] === 2 || colours === COLOURS.dark ? "#12161c" : mark[3] === 3 ? "#1c2430" : "#ffffff", fontSize: 11 } };
          drawn.textConfig = { position: "inside" };
        }
        return drawn;
      }
      // Joined spans are stacked by the kinds' shares of the time.
      let bottom = middle + height / 2;
      const all = Math.max(sum(mark[4]), mark[1]);
      const children = mark[4].flatMap((time, kind) => {
        const part = (height * time) / all;
        bottom -= part;
        const shape = part > 0 ? clip(from, bottom, to - from, part) : null;
        return shape ? [{ type: "rect", shape, style: { fill: colours.kinds[kind] } }] : [];
      });
      return children.length ? { type: "group", children } : undefined;
    };
    const time = valueAxis(colours, seconds, { max: longest, splitNumber: width < 520 ? 3 : 6 });
    time.axisLabel = { ...time.axisLabel, formatter: trimmed, showMaxLabel: false };
    return {
      ...common(colours, text, { formatter: (item) => describe(marks[item.dataIndex]) }),
      legend: legend(colours, { selectedMode: false, icon: "roundRect" }),
      grid: grid(width, labels, { top: 34, bottom: 66, right: rows.length > most ? 40 : 20 }),
      xAxis: time,
      yAxis: nameAxis(colours, labels, width),
      dataZoom: [
        { type: "slider", id: "time", xAxisIndex: 0, filterMode: "weakFilter", height: 22, bottom: 8, showDetail: false, showDataShadow: false, brushSelect: false, borderColor: colours.line },
        { type: "inside", xAxisIndex: 0, filterMode: "weakFilter", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false },
        ...rowSlider(rows.length, most),
      ],
      series: [
        { type: "custom", renderItem: draw, data, encode: { x: [1, 2], y: 0 }, progressive: 0 },
        // The legend needs a series per kind: the marks of all kinds are one series.
        ...kinds.map((kind) => ({ type: "scatter", name: KIND_NAMES[kind], data: [], itemStyle: { color: colours.kinds[kind], opacity: 1 } })),
      ],
    };
  };
  return { text, height: Math.min(rows.length, most) * 20 + 110, option };
}

/** Parts of a rank's time, in the order in which they are stacked. */
const PARTS_OF_TIME = [
  { name: "compute", color: (colours) => colours.kinds[0], of: (rank) => rank.compute_s },
  { name: "exposed communication", color: (colours) => colours.kinds[1], of: (rank) => rank.exposed_comm_s - rank.late_peer_s },
  { name: "late peer", color: (colours) => colours.kinds[2], of: (rank) => rank.late_peer_s - rank.no_data_s },
  { name: "late peer: no data", color: (colours) => colours.noData, of: (rank) => rank.no_data_s },
  { name: "idle", color: (colours) => colours.kinds[3], of: (rank) => rank.idle_s },
];
const stackOfTime = (ranksOfRows) =>
  PARTS_OF_TIME.map(({ name, color, of }) => ({
    name, color,
    values: ranksOfRows.map((ranks) => Math.max(0, sum(ranks.map(of)) / Math.max(1, ranks.length))),
  })).filter(({ values }) => values.some((value) => value > 0));

function ranksTime(run) {
  const { ranks, makespan_s: makespan } = run.report;
  if (ranks.length === 0 || makespan === 0) return null;
  const mean = (of) => percent(sum(ranks.map(of)) / ranks.length / makespan);
  const most = ranks.reduce((a, b) => (b.compute_s > a.compute_s ? b : a));
  return stackedBars({
    names: ranks.map(({ rank, device }) => `rank ${rank} (${device})`),
    series: stackOfTime(ranks.map((rank) => [rank])),
    show: seconds,
    text: `Where the time of ${counted(ranks.length, "rank")} went: on average ${mean((rank) => rank.compute_s)} compute and ${mean((rank) => rank.exposed_comm_s)} exposed communication. Rank ${most.rank} computes longest, ${seconds(most.compute_s)}.`,
  });
}

function averageRanks(runs) {
  return stackedBars({
    names: runs.map((run) => run.name),
    series: stackOfTime(runs.map((run) => run.report.ranks)),
    show: seconds,
    text: `Where the time of an average rank went, by run: ${runs.map((run) => `${run.name} computes ${percent(sum(run.report.ranks.map((rank) => rank.compute_s)) / Math.max(1, run.report.ranks.length) / (run.report.makespan_s || 1))} of it`).join("; ")}.`,
  });
}

const pathOf = (run) => run.seen?.critical ?? run.report.critical_path ?? null;

/** The kinds of time on critical paths, by run. */
function pathKinds(runs) {
  const names = [...new Set(runs.flatMap((run) => pathOf(run).kinds.map((part) => part.name ?? part.kind)))];
  const time = (run, name) => pathOf(run).kinds.find((part) => (part.name ?? part.kind) === name)?.seconds ?? 0;
  return stackedBars({
    names: runs.map((run) => run.name),
    series: names.map((name) => ({ name, color: coloured(name), values: runs.map((run) => time(run, name)) })),
    show: seconds,
    text: `What the critical path is made of: ${runs.map((run) => `${runs.length > 1 ? `${run.name}: ` : ""}${pathOf(run).kinds.slice(0, 3).map((part) => `${part.name ?? part.kind} ${percent(part.share)}`).join(", ")}`).join("; ")}.`,
  });
}

function linksOverTime(run) {
  const { links, piece_ps: piece, left_out: leftOut } = run.seen.links;
  if (links.length === 0) return null;
  const names = links.map((link) => link.name);
  const pieces = Math.max(1, Math.ceil(run.seen.makespan_ps / piece));
  const times = Array.from({ length: pieces }, (_, number) => number * piece * 1e-12);
  const data = links.flatMap((link, row) => link.used.flatMap((used, at) => (used > 0 && at < pieces ? [[at, row, used / 10]] : [])));
  const busiest = links.reduce((a, b) => (sum(b.used) > sum(a.used) ? b : a));
  const text = `How busy ${counted(links.length, "link")} were over time${leftOut ? `; ${leftOut} more carried less` : ""}. The busiest, ${busiest.name}, carried ${bytes(busiest.bytes)} and was used at ${percent(sum(busiest.used) / 1000 / pieces)} on average.`;
  const most = 40;
  return {
    text,
    height: Math.min(links.length, most) * 20 + 110,
    option: (colours, width) => ({
      ...common(colours, text, {
        formatter: ({ value: [at, row, used] }) => lines(names[row], `${trimmed(times[at])} to ${trimmed(times[at] + piece * 1e-12)}`, `used at ${used.toFixed(1)} % of ${bitRate(links[row].bandwidth)}`),
      }),
      grid: grid(width, names, { top: 8, bottom: 78, right: links.length > most ? 40 : 20 }),
      xAxis: { type: "category", data: times, ...axisColours(colours), axisLabel: { color: colours.faint, hideOverlap: true, formatter: (value) => seconds(Number(value), 3) }, axisTick: { show: false } },
      yAxis: nameAxis(colours, names, width),
      visualMap: { min: 0, max: 100, calculable: false, orient: "horizontal", left: "center", bottom: 4, itemHeight: 120, itemWidth: 12, text: ["100 %", "0 %"], textStyle: { color: colours.text }, inRange: { color: colours.ramp } },
      dataZoom: rowSlider(links.length, most),
      series: [{ type: "heatmap", data, progressive: 0, itemStyle: { borderWidth: 0 } }],
    }),
  };
}

/** Places of a network's hosts and switches: hosts on a circle, switches between the hosts that they join. */
function places(links, hosts) {
  const ends = links.map(({ name }) => name.split(/ -> | <-> /)).map((pair) => (pair.length === 2 ? pair : [name1(pair[0]), null]));
  const names = [...new Set(ends.flat().filter(Boolean))];
  const isHost = new Set(hosts);
  const around = names.filter((name) => isHost.has(name)).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const between = names.filter((name) => !isHost.has(name)).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const at = new Map();
  const onCircle = (of, radius, turn) => of.forEach((name, number) => {
    const angle = (2 * Math.PI * number) / of.length - Math.PI / 2 + turn;
    at.set(name, [Math.cos(angle) * radius, Math.sin(angle) * radius]);
  });
  onCircle(around.length ? around : between, 1, 0);
  const neighbours = (name) => ends.flatMap(([a, b]) => (a === name ? [b] : b === name ? [a] : [])).filter((other) => other && at.has(other));
  const loose = [];
  for (const name of around.length ? between : []) {
    const near = neighbours(name).filter((other) => isHost.has(other)).map((other) => at.get(other));
    const middle = [0, 1].map((axis) => sum(near.map((place) => place[axis])) / Math.max(1, near.length));
    if (between.length === 1) at.set(name, [0, 0]);
    else if (near.length === 0 || Math.hypot(...middle) < 0.2) loose.push(name);
    else at.set(name, middle.map((value) => value * 0.62));
  }
  onCircle(loose, loose.length > 1 ? 0.22 : 0, 0.4);
  return { ends, at, isHost };
}
/** The name of a medium or a backplane, which has no ends: it is drawn as the switch that it belongs to. */
const name1 = (name) => name.replace(/ backplane$/, "");

/** The network in one time interval, each link in the colour of its load. `frame()` returns the interval's number. */
function network(run, frame) {
  const { links, hosts } = run.seen.links;
  const { ends, at, isHost } = places(links, hosts);
  if (at.size < 2 || at.size > 200) return null;
  const text = `The network with ${counted([...at.keys()].filter((name) => isHost.has(name)).length, "host")}; links have the colour of their use at the chosen time. The chart of links over time has the same figures.`;
  const shade = (colours, share) => {
    const place = Math.min(1, share) * (colours.ramp.length - 1);
    const below = Math.min(Math.floor(place), colours.ramp.length - 2);
    const [from, to] = [colours.ramp[below], colours.ramp[below + 1]].map((hex) => [1, 3, 5].map((byte) => parseInt(hex.slice(byte, byte + 2), 16)));
    return `rgb(${from.map((value, channel) => Math.round(value + (to[channel] - value) * (place - below))).join(",")})`;
  };
  const used = (number) => (links[number].used[frame()] ?? 0) / 1000;
  const edges = (colours) => links.flatMap((link, number) => {
    const [source, target] = ends[number];
    if (target === null || source === target) return [];
    const share = used(number);
    const both = link.name.includes(" <-> ");
    const style = { color: share > 0 ? shade(colours, 0.15 + 0.85 * share) : colours.line, width: share > 0 ? 2 + 5 * Math.min(1, share) : 1.2, opacity: 1, curveness: both ? 0 : 0.14 };
    return [{ source, target, number, symbol: both ? ["none", "none"] : ["none", "arrow"], symbolSize: share > 0 ? 9 : 5, lineStyle: style, z: share }];
  });
  const nodes = (colours) => [...at].map(([name, [x, y]]) => {
    const own = links.findIndex((link, number) => ends[number][1] === null && ends[number][0] === name);
    const fill = own >= 0 && used(own) > 0 ? shade(colours, 0.15 + 0.85 * used(own)) : isHost.has(name) ? colours.kinds[0] : colours.faint;
    const many = at.size > 48;
    const label = { show: !many || !isHost.has(name), position: y > 0.05 ? "bottom" : y < -0.05 ? "top" : x < -0.05 ? "left" : "right", color: colours.text, fontSize: 11 };
    return { id: name, name, x: x * 100, y: y * 100, symbol: isHost.has(name) ? "circle" : "roundRect", symbolSize: many ? 9 : 16, itemStyle: { color: fill }, label, own };
  });
  const describe = ({ dataType, data }) => {
    const number = dataType === "edge" ? data.number : data.own;
    if (number < 0 || number === undefined) return html(data.name);
    return lines(links[number].name, `used at ${percent(used(number))} of ${bitRate(links[number].bandwidth)}`);
  };
  return {
    text,
    height: 380,
    pieces: Math.max(1, Math.ceil(run.seen.makespan_ps / run.seen.links.piece_ps)),
    edges, nodes,
    option: (colours) => ({
      ...common(colours, text, { formatter: describe }),
      series: [{ type: "graph", layout: "none", left: 60, right: 60, top: 40, bottom: 40, preserveAspect: "contain", roam: false, data: nodes(colours), links: edges(colours), emphasis: { disabled: true } }],
    }),
  };
}

/** Operations by size and time, each with the least time that the network allows. */
function operationsBySize(run) {
  const rows = run.seen.operations.filter((row) => row.time_s > 0);
  if (rows.length === 0) return null;
  const kinds = [...new Set(rows.map((row) => row.operation))];
  const bounded = rows.filter((row) => row.bound_s > 0);
  const worst = bounded.length ? bounded.reduce((a, b) => (b.count * (b.time_s - b.late_s - b.bound_s) > a.count * (a.time_s - a.late_s - a.bound_s) ? b : a)) : null;
  const words = (row) => `${row.operation} of ${counted(row.members, "rank")}, ${bytes(row.bytes)}`;
  const text = `Operations by size: ${counted(sum(rows.map((row) => row.count)), "operation")} of ${counted(kinds.length, "kind")}. ${worst ? `Most time above the bound: ${words(worst)}, which takes ${seconds(worst.time_s)} and needs at least ${seconds(worst.bound_s)}.` : "The bounds are not known."}`;
  const size = (row) => Math.max(1, row.bytes);
  return {
    text,
    height: 380,
    option: (colours, width) => ({
      ...common(colours, text, {
        formatter: ({ seriesName, dataIndex }) => {
          const row = rows.filter((row) => row.operation === seriesName)[dataIndex];
          return lines(words(row), `${counted(row.count, "time")}, on average ${seconds(row.time_s)}`, `until the last rank came: ${seconds(row.late_s)}`, `at least on this network: ${seconds(row.bound_s)}`);
        },
      }),
      legend: legend(colours, { data: kinds }),
      grid: { left: width < 520 ? 66 : 90, right: 24, top: 40, bottom: 44 },
      xAxis: { type: "log", logBase: 2, name: "size of the tensor", nameLocation: "middle", nameGap: 28, ...axisColours(colours), axisLabel: { color: colours.faint, hideOverlap: true, formatter: (value) => bytes(value) } },
      yAxis: { type: "log", name: width < 520 ? "" : "time", nameLocation: "middle", nameGap: 66, ...axisColours(colours), axisLabel: { color: colours.faint, formatter: (value) => seconds(value, 3) } },
      series: kinds.map((kind, number) => {
        const colour = colours.series[number % colours.series.length];
        return {
          type: "custom", name: kind, itemStyle: { color: colour }, encode: { x: 0, y: [1, 2] },
          data: rows.filter((row) => row.operation === kind).map((row) => [size(row), row.time_s, row.bound_s > 0 ? row.bound_s : row.time_s]),
          renderItem: (params, api) => {
            const [x, y] = api.coord([api.value(0), api.value(1)]);
            const [, low] = api.coord([api.value(0), api.value(2)]);
            const line = (x1, y1, x2, y2, width, stroke) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke, lineWidth: width } });
            const down = low > y ? [line(x, y, x, low, 1.5, colour), line(x - 7, low, x + 7, low, 2.5, colours.bound)] : [];
            return { type: "group", children: [...down, { type: "circle", shape: { cx: x, cy: y, r: 5.5 }, style: { fill: colour, stroke: colours.sheet, lineWidth: 1 } }] };
          },
        };
      }),
    }),
  };
}

function operationsTime(run) {
  const { operations } = run.report;
  if (operations.length === 0) return null;
  const by = new Map();
  for (const { operation, time_s: time, exposed_s: exposed } of operations) {
    const [times, exposures] = by.get(operation) ?? [0, 0];
    by.set(operation, [times + time, exposures + exposed]);
  }
  const rows = [...by].sort((a, b) => b[1][0] - a[1][0]);
  return stackedBars({
    names: rows.map(([name]) => name),
    series: [
      { name: "exposed", color: (colours) => colours.kinds[1], values: rows.map(([, [, exposed]]) => exposed) },
      { name: "beside compute or other waits", color: (colours) => colours.kinds[4], values: rows.map(([, [time, exposed]]) => Math.max(0, time - exposed)) },
    ],
    show: seconds,
    text: `Time of operations, summed over ranks: ${rows.slice(0, 3).map(([name, [time, exposed]]) => `${name} ${seconds(time)}, of it exposed ${seconds(exposed)}`).join("; ")}.`,
  });
}

/** The rank with the most time in each range. */
function phases(run) {
  const by = new Map();
  for (const phase of run.report.phases ?? []) if (!(by.get(phase.name)?.total_s >= phase.total_s)) by.set(phase.name, phase);
  const rows = [...by.values()].filter((row) => row.total_s > 0).sort((a, b) => b.total_s - a.total_s).slice(0, 24);
  if (rows.length === 0) return null;
  const known = rows.every((row) => row.compute_s !== undefined);
  const parts = known
    ? [
        { name: "compute", color: (colours) => colours.kinds[0], values: rows.map((row) => row.compute_s) },
        { name: "exposed communication", color: (colours) => colours.kinds[1], values: rows.map((row) => row.exposed_comm_s) },
        { name: "other", color: (colours) => colours.kinds[3], values: rows.map((row) => Math.max(0, row.total_s - row.compute_s - row.exposed_comm_s)) },
      ]
    : [{ name: "time", color: (colours) => colours.kinds[0], values: rows.map((row) => row.total_s) }];
  return stackedBars({
    names: rows.map((row) => row.name),
    series: parts.filter(({ values }) => values.some((value) => value > 0)),
    show: seconds,
    tip: (at) => `rank ${rows[at].rank}, ${counted(rows[at].count, "time")}`,
    text: `Named ranges of the program, each on the rank that spent most in it: ${rows.slice(0, 3).map((row) => `${row.name} ${seconds(row.total_s)}`).join(", ")}.`,
  });
}

function memoryPeaks(run) {
  const rows = (run.report.memory ?? []).filter((row) => row.kind !== "host");
  if (rows.length === 0) return null;
  const ranks = [...new Set(rows.map((row) => row.rank))];
  const kinds = [...new Set(rows.map((row) => row.kind))];
  const held = (rank, kind) => rows.find((row) => row.rank === rank && row.kind === kind)?.peak_bytes ?? 0;
  const total = (rank) => sum(kinds.map((kind) => held(rank, kind)));
  const most = ranks.reduce((a, b) => (total(b) > total(a) ? b : a));
  return stackedBars({
    names: ranks.map((rank) => `rank ${rank}`),
    series: kinds.map((kind) => ({ name: kind.replace("_", " "), color: coloured(kind), values: ranks.map((rank) => held(rank, kind)) })),
    show: bytes,
    text: `What ranks held at their peaks. Rank ${most} held most, ${bytes(total(most))}: ${kinds.filter((kind) => held(most, kind) > 0).map((kind) => `${kind.replace("_", " ")} ${bytes(held(most, kind))}`).join(", ")}.`,
  });
}

function memoryOverTime(run, chart, longest) {
  const { rank, kinds, points } = chart;
  const end = run.seen.makespan_ps;
  const last = points[points.length - 1];
  const all = last[0] < end ? [...points, [end, last[1]]] : points;
  const total = (held) => sum(held.filter((_, number) => kinds[number] !== "host"));
  const peak = all.reduce((a, b) => (total(b[1]) > total(a[1]) ? b : a));
  const text = `What rank ${rank} held over time; most at ${seconds(peak[0] * 1e-12)}: ${bytes(total(peak[1]))}.`;
  return {
    text,
    height: 280,
    option: (colours, width) => ({
      ...common(colours, text, {
        trigger: "axis",
        formatter: (items) => lines(`from ${trimmed(items[0].value[0])}`, ...items.map((item) => `${item.seriesName}: ${bytes(item.value[1])}`)),
      }),
      legend: legend(colours),
      grid: { left: 76, right: 24, top: 36, bottom: 30 },
      xAxis: valueAxis(colours, seconds, { max: longest, splitNumber: width < 520 ? 3 : 6, axisLabel: { color: colours.faint, hideOverlap: true, showMaxLabel: false, formatter: (value) => seconds(value, 3) } }),
      yAxis: byteAxis(colours, largest(all.map(([, held]) => Math.max(total(held), held[kinds.indexOf("host")] ?? 0)))),
      series: kinds.map((kind, number) => ({
        name: kind.replace("_", " "), type: "line", step: "end", stack: kind === "host" ? "host" : "device", symbol: "none",
        lineStyle: { width: 1 }, areaStyle: { opacity: kind === "host" ? 0 : 0.75 }, color: coloured(kind)(colours),
        data: all.map(([at, held]) => [at * 1e-12, held[number]]),
      })),
    }),
  };
}

function energy(run) {
  const ranks = run.report.ranks.filter((rank) => rank.energy_j !== undefined);
  if (ranks.length === 0) return null;
  const all = sum(ranks.map((rank) => rank.energy_j));
  return stackedBars({
    names: ranks.map(({ rank, device }) => `rank ${rank} (${device})`),
    series: [{ name: "energy", color: (colours) => colours.kinds[4], values: ranks.map((rank) => rank.energy_j) }],
    show: joules,
    text: `Energy by rank: ${counted(ranks.length, "device")} ${ranks.length === 1 ? "draws" : "draw"} ${joules(all)}.`,
  });
}

/** Changes with their makespans, the largest gain first. */
function whatIf(run) {
  const { makespan_s: makespan, changes } = run.what_if;
  const rows = changes.filter((change) => Math.abs(change.gain) >= 0.0005).slice(0, 24);
  if (rows.length === 0) return null;
  const names = rows.map((change) => shortOptions(change.options));
  const text = `Makespans with one change each, of ${seconds(makespan)} without: ${rows.slice(0, 3).map((change) => `${shortOptions(change.options)} ${seconds(change.makespan_s)} (${signedPercent(-change.gain)})`).join("; ")}.`;
  const bars = stackedBars({
    names,
    series: [{ name: "makespan with the change", color: (colours) => colours.kinds[0], values: rows.map((change) => change.makespan_s) }],
    show: seconds,
    tip: (at) => `gain: ${seconds(rows[at].gain_s)} (${percent(rows[at].gain)})`,
    text,
  });
  return {
    ...bars,
    option: (colours, width) => {
      const option = bars.option(colours, width);
      option.series[0].markLine = { silent: true, symbol: "none", label: { formatter: "as it is", color: colours.text, position: "start", distance: 2, fontSize: 10 }, lineStyle: { color: colours.bound, type: "dashed" }, data: [{ xAxis: makespan }] };
      option.grid.top = 12;
      option.grid.bottom = 44;
      option.xAxis.axisLabel.margin = 16;
      option.xAxis.max = largest([makespan, ...rows.map((change) => change.makespan_s)]) * 1.03;
      option.xAxis.axisLabel.showMaxLabel = false;
      return option;
    },
  };
}
/** The options in a shell's syntax; of many similar options the first. */
function shortOptions(options) {
  const shown = options.length > 4 ? [...options.slice(0, 2), `and ${options.length / 2 - 1} more`] : options;
  return shown.filter((word) => word !== "--set").join(" ");
}
