// Numbers, axes and elements: what the charts and the timeline share.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function html(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children); // strings become text, never markup
  return element;
}

/** Text of a number: four significant digits at most, k, M, G and T above ten thousand, powers of ten when tiny. */
function number(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return value.toExponential(1).replace(".0e", "e").replace("e-", "e\u2212").replace(/^-/, "\u2212");
  let text;
  if (size >= 1e12) text = trim(value / 1e12, 1) + "T";
  else if (size >= 1e9) text = trim(value / 1e9, 1) + "G";
  else if (size >= 1e6) text = trim(value / 1e6, size < 1e7 ? 2 : 1) + "M";
  else if (size >= 1e4) text = trim(value / 1e3, 1) + "k";
  else if (size >= 100) text = trim(value, 0);
  else if (size >= 10) text = trim(value, 1);
  else text = trim(value, size >= 1 ? 2 : 3);
  return text.replace(/^-/, "\u2212");
}

function trim(value, digits) {
  const text = value.toFixed(digits);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function quantity(value, unit) {
  if (unit === "fraction") return number(value * 100) + "\u2009%";
  if (unit === "s" && value >= 120) return duration(value);
  return unit ? number(value) + "\u2009" + unit : number(value);
}

function duration(seconds) {
  if (seconds >= 3600) return trim(seconds / 3600, 1) + "\u2009h";
  if (seconds >= 60) return trim(seconds / 60, 1) + "\u2009min";
  if (seconds >= 1 || seconds === 0) return trim(seconds, seconds < 10 ? 2 : 1) + "\u2009s";
  return trim(seconds * 1000, seconds >= 0.1 ? 0 : 1) + "\u2009ms";
}

/** Round values from lo to hi, about `count` of them. `least` is the smallest distance (1 for whole steps). */
function ticks(lo, hi, count, least) {
  const raw = (hi - lo) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max([1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999), least || 0);
  const result = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + step * 1e-9; i++) result.push(i * step);
  return result;
}

/** Whole minutes or hours instead of 250 seconds on a time axis. */
function timeTicks(lo, hi, count) {
  const unit = hi - lo >= 7200 ? 3600 : hi - lo >= 180 ? 60 : 1;
  return ticks(lo / unit, hi / unit, count).map((value) => value * unit);
}

const tooltip = {
  element: document.getElementById("tooltip"),
  show(x, y, title, rows) {
    const lines = rows.map(([colour, label, text]) => {
      const name = html("span", "", label);
      if (colour) name.prepend(html("i", "swatch c-" + colour));
      return html("div", "row", name, html("b", "", text));
    });
    this.element.replaceChildren(html("div", "title", title), ...lines);
    this.element.hidden = false;
    const { width, height } = this.element.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const left = x + 16 + width > room - 8 ? x - 16 - width : x + 16;
    this.element.style.left = Math.max(8, left) + window.scrollX + "px";
    this.element.style.top = Math.max(8, y - height - 12) + window.scrollY + "px";
  },
  hide() {
    this.element.hidden = true;
  },
};
