// Line and stacked charts as inline SVG. All charts share their rows, so one crosshair runs through all of them.

const HEIGHT = { small: 150, wide: 230 };

class Chart {
  constructor(spec, page) {
    this.spec = spec;
    this.page = page; // { columns, axis: "step" | "elapsed", marks, charts }
    this.legend = html("ul", "legend");
    this.figure = html("figure", "card chart" + (spec.wide ? " wide" : ""));
    this.figure.id = "chart-" + spec.id;
    this.figure.dataset.chart = spec.id;
    const title = html("h3", "", spec.title);
    const unit = spec.unit === "fraction" ? "%" : spec.unit;
    if (unit) title.append(html("span", "unit", unit));
    const caption = html("figcaption", "", html("div", "top", title));
    if (spec.wide || spec.series.length === 1) {
      caption.firstChild.append(this.legend);
      caption.append(html("p", "hint", spec.hint));
    } else {
      title.title = spec.hint; // the legend takes the place of the hint, so that neighbours stay level
      caption.append(this.legend);
    }
    this.figure.append(caption);
    this.svg = svg("svg", { role: "img", tabindex: 0 });
    this.figure.append(this.svg);
    this.fillLegend();
    this.listen();
  }

  values(series) {
    return this.page.columns[series.column];
  }

  fillLegend() {
    const shown = this.spec.series;
    for (const series of shown) {
      const value = this.values(series).findLast((v) => v !== null);
      const item = html("li", "", html("b", "", this.spec.unit === "fraction" ? quantity(value, "fraction") : number(value)));
      if (shown.length > 1) item.prepend(html("i", "swatch c-" + series.colour), series.label + " ");
      item.title = series.label + ", last value";
      this.legend.append(item);
    }
    const said = shown.map((s) => `${s.label} ${quantity(this.values(s).findLast((v) => v !== null), this.spec.unit)}`);
    this.svg.setAttribute("aria-label", `${this.spec.title}: ${said.join(", ")} at the end`);
  }

  /** Range of the vertical axis. */
  range() {
    if (this.spec.bounds) return this.spec.bounds;
    let lo = Infinity;
    let hi = -Infinity;
    const rows = this.page.columns.step.length;
    for (let i = 0; i < rows; i++) {
      const here = this.spec.series.map((s) => this.values(s)[i]).filter((v) => v !== null);
      if (!here.length) continue;
      hi = Math.max(hi, this.spec.kind === "stack" ? here.reduce((a, b) => a + b, 0) : Math.max(...here));
      lo = Math.min(lo, ...here);
    }
    if (this.spec.target !== null) [lo, hi] = [Math.min(lo, this.spec.target), Math.max(hi, this.spec.target)];
    if (this.spec.floor && lo >= 0) return [0, hi > 0 ? hi * 1.06 : this.spec.unit === "fraction" ? 0.1 : 1];
    const room = hi > lo ? (hi - lo) * 0.08 : Math.abs(hi) * 0.1 || 1;
    return [lo - room, hi + room];
  }

  draw() {
    const width = Math.max(180, this.figure.clientWidth - 32);
    const height = this.spec.wide ? HEIGHT.wide : HEIGHT.small;
    const [lo, hi] = this.range();
    const rows = ticks(lo, hi, height / (this.spec.wide ? 45 : 36));
    const labels = rows.map((value) => (this.spec.unit === "fraction" ? number(value * 100) : number(value)));
    const left = Math.max(...labels.map((label) => label.length)) * 6.8 + 10;
    const [right, top, bottom] = [10, 10, 24];
    const [first, last] = this.domain();
    this.x = (value) => left + ((value - first) / (last - first)) * (width - left - right);
    this.y = (value) => height - bottom - ((value - lo) / (hi - lo)) * (height - top - bottom);
    this.box = { left, right: width - right, top, bottom: height - bottom };

    const parts = [];
    rows.forEach((value, i) => {
      const y = Math.round(this.y(value)) + 0.5;
      parts.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }));
      parts.push(svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, labels[i]));
    });
    parts.push(...this.drawAxis(first, last, width, height, bottom), ...this.drawMarks());
    const inBack = (series) => (series.colour === "grey" ? 0 : 1); // a maximum never hides its mean
    const series = [...this.spec.series].sort((a, b) => inBack(a) - inBack(b));
    parts.push(...(this.spec.kind === "stack" ? this.drawStack() : series.flatMap((s) => this.drawLine(s))));
    this.cross = svg("line", { class: "cross", y1: top, y2: height - bottom, visibility: "hidden" });
    this.heads = svg("g", {});
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren(...parts, this.cross, this.heads);
  }

  /** Horizontal range: half a step of room, so that bars and single points are not cut. */
  domain() {
    const x = this.page.columns[this.page.axis];
    const [first, last] = [x[0], x[x.length - 1]];
    if (x.length > 1 && last > first) {
      const half = (last - first) / (x.length - 1) / 2;
      return this.spec.kind === "stack" ? [first - half, last + half] : [first, last];
    }
    return [first - 1, first + 1];
  }

  drawAxis(first, last, width, height, bottom) {
    const time = this.page.axis === "elapsed";
    const count = Math.max(2, width / 90);
    const values = time ? timeTicks(Math.max(0, first), last, count) : ticks(first, last, count, 1);
    const rows = this.page.columns.step;
    const shown = rows.length === 1 ? [this.page.columns[this.page.axis][0]] : values;
    const y = height - bottom + 0.5;
    const parts = [svg("line", { class: "axis", x1: this.box.left, x2: this.box.right, y1: y, y2: y })];
    for (const value of shown) {
      const x = this.x(value);
      const anchor = x > width - 22 ? "end" : "middle";
      const text = time ? duration(value) : (value === shown[0] && width > 240 ? "step " : "") + number(value);
      parts.push(svg("text", { x: anchor === "end" ? width : x, y: height - 7, "text-anchor": anchor }, text));
    }
    return parts;
  }

  drawMarks() {
    const parts = [];
    for (const step of this.page.marks.resumed) {
      const row = this.page.columns.step.findIndex((value) => value >= step);
      if (row < 0) continue;
      const x = this.x(this.page.columns[this.page.axis][row]);
      parts.push(svg("line", { class: "mark resumed", x1: x, x2: x, y1: this.box.top, y2: this.box.bottom }));
      const end = x > this.box.right - 70;
      const place = { x: x + (end ? -5 : 5), y: this.box.top + 10, "text-anchor": end ? "end" : "start" };
      if (this.spec.wide) parts.push(svg("text", place, "resumed"));
    }
    if (this.spec.target !== null) {
      const y = this.y(this.spec.target);
      parts.push(svg("line", { class: "mark", x1: this.box.left, x2: this.box.right, y1: y, y2: y }));
      const text = "target " + number(this.spec.target);
      parts.push(svg("text", { x: this.box.left + 6, y: y > 26 ? y - 5 : y + 14 }, text));
    }
    return parts;
  }

  points(series) {
    const x = this.page.columns[this.page.axis];
    return this.values(series).map((value, i) => (value === null ? null : [this.x(x[i]), this.y(value)]));
  }

  drawLine(series) {
    const points = this.points(series);
    const sparse = series.style === "points"; // measured now and then: joined across the steps between
    const runs = [[]];
    for (const point of points) {
      if (point) runs[runs.length - 1].push(point);
      else if (!sparse && runs[runs.length - 1].length) runs.push([]);
    }
    const group = svg("g", { class: "c-" + series.colour, "data-series": series.column });
    const noisy = !sparse && isNoisy(points);
    const path = lines(runs);
    if (path) group.append(svg("path", { class: noisy ? "series raw" : "series", d: path }));
    if (noisy) group.append(svg("path", { class: "series trend", d: lines(runs.map(trend)) }));
    const all = points.filter(Boolean);
    const dots = sparse && all.length <= 80 ? all : runs.filter((run) => run.length === 1).flat();
    const radius = sparse || all.length < 30 ? 3.5 : 2;
    for (const [x, y] of dots) group.append(svg("circle", { class: "dot", cx: x, cy: y, r: radius }));
    return [group];
  }

  drawStack() {
    const x = this.page.columns[this.page.axis].map((value) => this.x(value));
    const base = x.map(() => 0);
    const middle = (i) => (x[i - 1] + x[i]) / 2;
    const edge = (i) => {
      if (x.length === 1) return [x[0] - 40, x[0] + 40];
      const from = i > 0 ? middle(i) : 2 * x[0] - middle(1);
      return [from, i + 1 < x.length ? middle(i + 1) : 2 * x[i] - from];
    };
    return this.spec.series.map((series) => {
      let path = "";
      this.values(series).forEach((value, i) => {
        if (!value) return;
        let [from, to] = edge(i);
        const gap = to - from > 5 ? Math.min(2, (to - from) * 0.14) : 0;
        [from, to] = [Math.max(from + gap / 2, this.box.left), Math.min(to - gap / 2, this.box.right)];
        const [low, high] = [this.y(base[i]), this.y(base[i] + value)];
        base[i] += value;
        path += `M${from.toFixed(2)},${low.toFixed(2)}V${high.toFixed(2)}H${to.toFixed(2)}V${low.toFixed(2)}Z`;
      });
      const shape = svg("path", { class: "solid", d: path });
      return svg("g", { class: "c-" + series.colour, "data-series": series.column }, shape);
    });
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => {
      const scale = this.svg.viewBox.baseVal.width / this.svg.getBoundingClientRect().width;
      const at = (event.clientX - this.svg.getBoundingClientRect().left) * scale;
      const x = this.page.columns[this.page.axis];
      let nearest = 0;
      x.forEach((value, i) => {
        if (Math.abs(this.x(value) - at) < Math.abs(this.x(x[nearest]) - at)) nearest = i;
      });
      this.hover(nearest, event.clientX, event.clientY);
    });
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const last = this.page.columns.step.length - 1;
      const row = Math.min(last, Math.max(0, (this.row ?? (move > 0 ? -1 : last + 1)) + move));
      const box = this.svg.getBoundingClientRect();
      this.hover(row, box.left + this.x(this.page.columns[this.page.axis][row]), box.top + 30);
    });
  }

  hover(row, clientX, clientY) {
    this.row = row;
    for (const chart of this.page.charts) chart.point(row);
    const at = this.page.columns;
    const rows = this.spec.series
      .filter((series) => this.values(series)[row] !== null)
      .map((series) => [series.colour, series.label, quantity(this.values(series)[row], this.spec.unit)]);
    if (this.spec.kind === "stack") {
      const sum = this.spec.series.reduce((total, series) => total + (this.values(series)[row] || 0), 0);
      rows.push([null, "together", quantity(sum, this.spec.unit)]);
    }
    if (!rows.length) rows.push([null, "not measured here", ""]);
    tooltip.show(clientX, clientY, `Step ${at.step[row]} \u00b7 ${duration(at.elapsed[row])}`, rows);
  }

  leave() {
    this.row = undefined;
    for (const chart of this.page.charts) chart.point(null);
    tooltip.hide();
  }

  /** Mark one row with the crosshair, or none. */
  point(row) {
    this.cross.setAttribute("visibility", row === null ? "hidden" : "visible");
    this.heads.replaceChildren();
    if (row === null) return;
    const x = this.x(this.page.columns[this.page.axis][row]);
    this.cross.setAttribute("x1", x);
    this.cross.setAttribute("x2", x);
    if (this.spec.kind === "stack") return;
    for (const series of this.spec.series) {
      const value = this.values(series)[row];
      if (value === null) continue;
      const dot = svg("circle", { class: "dot", cx: x, cy: this.y(value), r: 4 });
      this.heads.append(svg("g", { class: "c-" + series.colour }, dot));
    }
  }
}

function lines(runs) {
  const text = ([x, y]) => x.toFixed(2) + "," + y.toFixed(2);
  return runs.filter((run) => run.length > 1).map((run) => "M" + run.map(text).join("L")).join("");
}

/** Whether a curve goes up and down so much that its trend is worth a line of its own. */
function isNoisy(points) {
  const y = points.filter(Boolean).map((point) => point[1]);
  if (y.length < 40) return false;
  const way = y.reduce((sum, value, i) => sum + (i ? Math.abs(value - y[i - 1]) : 0), 0);
  return way > 4 * (Math.max(...y) - Math.min(...y));
}

/** Mean of the neighbours (a twentieth of the run), nearer ones counting more: centred, so that it does not lag. */
function trend(run) {
  const reach = Math.max(2, Math.round(run.length / 40));
  return run.map(([x], i) => {
    let [sum, weights] = [0, 0];
    for (let j = Math.max(0, i - reach); j <= Math.min(run.length - 1, i + reach); j++) {
      const weight = 1 - Math.abs(i - j) / (reach + 1);
      sum += weight * run[j][1];
      weights += weight;
    }
    return [x, sum / weights];
  });
}
