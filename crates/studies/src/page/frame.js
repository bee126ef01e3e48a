// Owns the frame of every page: it redraws charts if the theme or the width changes, and exports them as pictures. The
// content of a page is in its own script.

/** All charts of the page, for the tests and for the pictures of `uniference report --figures`. */
const charts = [];
const isDark = () =>
  (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const colours = () => COLOURS[isDark() ? "dark" : "light"];

/** Draws a chart with the current colours and width. */
function draw(chart) {
  if (!chart.drawn) chart.drawn = echarts.init(chart.box, null, { renderer: "canvas" });
  else chart.drawn.resize();
  chart.drawn.setOption(chart.option(colours(), chart.box.clientWidth), true);
}

/** A chart with its sentence and its table, if it has one; `null` if `chart` is. */
function figure(name, run, chart, ...more) {
  if (!chart) return null;
  const box = element("div", { class: "chart", role: "img", "aria-label": chart.text, style: `height: ${chart.height}px` });
  const entry = { name: run ? `${fileName(run)}-${name}` : name, box, ...chart };
  charts.push(entry);
  const made = element("figure", { id: `figure-${entry.name}` }, box, element("figcaption", {}, chart.text), ...more);
  made.entry = entry;
  return made;
}
const fileName = (run) => run.name.replace(/[^\w.-]+/g, "_");

const figures = (pairs) =>
  element("dl", { class: "figures" }, pairs.filter(([, value]) => value !== null && value !== undefined).map(([title, value], number) =>
    element("div", {}, element("dt", {}, title), element("dd", number === 0 ? { class: "large" } : {}, value))));

const column = (title, of, show, about) => ({ title, of, show, about });

function paint() {
  for (const chart of charts) if (chart.box.clientWidth > 0) draw(chart);
}

function themes() {
  const button = document.getElementById("theme");
  const names = { "": "as the system", light: "light", dark: "dark" };
  const apply = (theme) => {
    // The style sheet has light and dark; the system's choice is read in this script, for charts too.
    button.dataset.choice = theme;
    button.textContent = `Theme: ${names[theme]}`;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme || system;
  };
  const order = Object.keys(names);
  button.onclick = () => {
    apply(order[(order.indexOf(button.dataset.choice) + 1) % order.length]);
    paint();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    apply(button.dataset.choice);
    paint();
  });
  apply("");
}

/** For `--figures`: each chart as SVG and PNG, in light colours, as text in the page. */
function takePictures() {
  const [width, light] = [1000, COLOURS.light];
  const pictures = charts.map((chart) => {
    const option = { ...chart.option(light, width), backgroundColor: light.sheet };
    // The slider of a picture cannot be moved.
    const rows = (option.dataZoom ?? []).filter((zoom) => zoom.yAxisIndex !== undefined);
    if (option.dataZoom?.length > rows.length) option.grid.bottom = 30;
    option.dataZoom = rows;
    const vector = echarts.init(null, null, { renderer: "svg", ssr: true, width, height: chart.height });
    vector.setOption(option);
    const svg = vector.renderToSVGString();
    vector.dispose();
    const box = element("div", { style: `width: ${width}px; height: ${chart.height}px; position: absolute; left: -9999px` });
    document.body.append(box);
    const raster = echarts.init(box, null, { renderer: "canvas", devicePixelRatio: 2, width, height: chart.height });
    raster.setOption(option);
    const png = raster.getDataURL({ pixelRatio: 2, backgroundColor: light.sheet });
    raster.dispose();
    box.remove();
    const digits = [...atob(png.slice(png.indexOf(",") + 1))].map((byte) => byte.charCodeAt(0).toString(16).padStart(2, "0"));
    return { name: chart.name, svg, png: digits.join("") };
  });
  const text = JSON.stringify(pictures).replaceAll("<", "\\u003c");
  document.body.append(element("script", { type: "application/json", id: "pictures" }, text));
}

/** Builds the page by `build`, and draws it now and after each change of the width. */
function start(build) {
  themes();
  build();
  paint();
  if (location.hash === "#pictures") takePictures();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    paint();
  });
}

