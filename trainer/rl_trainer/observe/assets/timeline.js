// The recent window of timeline.json: one lane per actor, a bar per span, inner spans narrower.

const LANE = 22;

class Timeline {
  constructor(figure, data) {
    this.figure = figure;
    this.data = data; // { start, seconds, actors, names: [[name, colour]], spans: [[actor, name, from, to, depth]] }
    this.svg = svg("svg", { role: "img", "aria-label": "What each actor did in the last part of the run" });
    figure.append(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => tooltip.hide());
  }

  draw() {
    const { actors, seconds, spans, names } = this.data;
    const width = Math.max(200, this.figure.clientWidth - 32);
    const longest = Math.max(...actors.map((actor) => actor.length));
    const letters = Math.min(longest, Math.floor((width * 0.28) / 6.8));
    const left = letters * 6.8 + 12;
    const height = actors.length * LANE + 28;
    this.x = (at) => left + (at / seconds) * (width - left - 10);
    this.at = (x) => ((x - left) / (width - left - 10)) * seconds;
    const parts = [];
    for (const value of timeTicks(0, seconds, Math.max(2, width / 100))) {
      const x = Math.round(this.x(value)) + 0.5;
      parts.push(svg("line", { class: "grid", x1: x, x2: x, y1: 0, y2: height - 24 }));
      const anchor = x > width - 24 ? "end" : "middle";
      parts.push(svg("text", { x: anchor === "end" ? width : x, y: height - 7, "text-anchor": anchor }, duration(value)));
    }
    actors.forEach((actor, row) => {
      const y = (row + 1) * LANE - 0.5;
      parts.push(svg("line", { class: "lane", x1: left, x2: width - 10, y1: y, y2: y }));
      const short = actor.length > letters ? actor.slice(0, letters - 1) + "\u2026" : actor;
      parts.push(svg("text", { x: 0, y: y - 6 }, short));
    });
    const paths = names.map(() => "");
    for (const [actor, name, from, to, depth] of spans) {
      const inset = 3 + Math.min(depth, 3) * 3;
      const [x, y] = [this.x(from), actor * LANE + inset];
      const length = Math.max(0.8, this.x(to) - x - 0.4);
      paths[name] += `M${x.toFixed(2)},${y}h${length.toFixed(2)}v${LANE - 2 * inset - 1}h${(-length).toFixed(2)}z`;
    }
    names.forEach(([name, colour], i) => {
      if (paths[i]) parts.push(svg("g", { class: "c-" + colour }, svg("path", { class: "solid", d: paths[i], "data-span": name })));
    });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.replaceChildren(...parts);
  }

  hover(event) {
    const box = this.svg.getBoundingClientRect();
    const scale = this.svg.viewBox.baseVal.width / box.width;
    const at = this.at((event.clientX - box.left) * scale);
    const lane = Math.floor(((event.clientY - box.top) * scale) / LANE);
    const slack = this.data.seconds / 600;
    const found = this.data.spans
      .filter(([actor, , from, to]) => actor === lane && from - slack <= at && at <= to + slack)
      .sort((a, b) => b[4] - a[4]);
    if (!found.length) return tooltip.hide();
    const rows = found.slice(0, 5).map(([, name, from, to]) => {
      const [label, colour] = this.data.names[name];
      return [colour, label, duration(to - from)];
    });
    tooltip.show(event.clientX, event.clientY, `${this.data.actors[lane]} \u00b7 at ${duration(Math.max(0, at))}`, rows);
  }
}
