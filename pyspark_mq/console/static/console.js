"use strict";

// Parts of a page that the server renews. The server escapes all values in them.
function renew(part) {
  let source = null;
  const follow = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) {
      source = new EventSource(part.dataset.live);
      source.onmessage = (event) => {
        if (part.contains(document.getSelection()?.anchorNode) && !document.getSelection().isCollapsed) return;
        const open = [...part.querySelectorAll("details")].map((each) => each.open);
        part.innerHTML = event.data;
        part.querySelectorAll("details").forEach((each, index) => { each.open = open[index] ?? false; });
      };
    }
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

function draw(place) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
  const size = () => ({ width: place.clientWidth, height: 170 });
  const plot = new uPlot({
    ...size(),
    tzDate: (seconds) => uPlot.tzDate(new Date(1000 * seconds), "Etc/UTC"),
    legend: { show: false },
    cursor: { y: false },
    padding: [8, 30, 0, 0],
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [{ ...axis, size: 30, space: 90, values: (_plot, ticks) => ticks.map((each) => new Date(1000 * each).toISOString().slice(11, 19)) }, { ...axis, size: 64, values: (_plot, ticks) => ticks.map((each) => each.toLocaleString("en")) }],
    series: [{}, { label: place.dataset.label, stroke: color("--accent"), fill: color("--accent-soft"), width: 2, points: { show: false } }],
  }, [[], []], place);
  const caption = document.createElement("p");
  caption.className = "note";
  caption.textContent = `${place.dataset.label}, as long as this console has run (one hour at most)`;
  place.after(caption);
  const ask = async () => {
    if (document.hidden) return;
    const answer = await fetch(place.dataset.chart);
    if (!answer.ok) return;
    const { times, values } = await answer.json();
    plot.setData([times, values]);
    place.dataset.points = times.length;
  };
  addEventListener("resize", () => plot.setSize(size()));
  ask();
  setInterval(ask, 2000);
}

document.querySelectorAll("[data-live]").forEach(renew);
document.querySelectorAll("[data-chart]").forEach(draw);
