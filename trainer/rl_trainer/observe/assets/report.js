// Puts the page together. Says on the page when something went wrong, and marks it for tests when all is drawn.

function problem(message) {
  const note = document.getElementById("problem");
  note.textContent = "Something on this page could not be drawn: " + message;
  note.hidden = false;
  document.documentElement.dataset.problem = message;
}
window.addEventListener("error", (event) => problem(event.message));

const data = JSON.parse(document.getElementById("data").textContent);
const page = { columns: data.columns, axis: "step", marks: data.marks, charts: [] };
const drawn = [];

for (const section of document.querySelectorAll("[data-charts]")) {
  for (const spec of data.sections[section.dataset.charts]) {
    const chart = new Chart(spec, page);
    section.append(chart.figure);
    page.charts.push(chart);
  }
}
drawn.push(...page.charts);
const strip = document.getElementById("timeline");
if (strip && data.timeline) drawn.push(new Timeline(strip, data.timeline));

function drawAll() {
  for (const part of drawn) part.draw();
}
drawAll();

let width = document.documentElement.clientWidth;
window.addEventListener("resize", () => {
  if (document.documentElement.clientWidth === width) return;
  width = document.documentElement.clientWidth;
  requestAnimationFrame(drawAll);
});
window.addEventListener("beforeprint", drawAll);

for (const button of document.querySelectorAll("[data-axis]")) {
  button.addEventListener("click", () => {
    page.axis = button.dataset.axis;
    for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", other === button);
    drawAll();
  });
}
for (const button of document.querySelectorAll("[data-show-all]")) {
  button.addEventListener("click", () => {
    document.querySelector(".examples").classList.add("all");
    button.remove();
  });
}

document.documentElement.dataset.charts = page.charts.length;
document.documentElement.dataset.rendered = "true";
