"use strict";
// The charts of waits, from `waits_ns` of a run in the report's document: over time, and how many
// were how long. Where epochs begin comes with the timeline's data.
(() => {
  const iobench = (window.iobench ??= {});
  const { duration, count } = iobench.quantities;
  const { make } = iobench.frame;
  const LEAST = 100; // ns; the lowest line of a logarithmic scale, which has no zero
  const SHORTEST = 1e3; // ns; shorter waits are one bin: a call that found its batch ready
  const BINS_PER_DECADE = 10;

  // Of sorted values, with those between two taken in proportion, as numpy.quantile does.
  function quantile(sorted, share) {
    const place = share * (sorted.length - 1);
    const low = Math.floor(place);
    const high = Math.min(low + 1, sorted.length - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
  }

  const isPower = (value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6;
  // Of a logarithmic axis only whole powers have lines: all others make a grey field of them.
  const powers = (_, at) => at.map((value) => (value !== null && isPower(value) ? value : null));
  const whole = (_, at) => at.map((value) => (Number.isInteger(value) ? count(value) : ""));

  function axis(colours, isLog, more) {
    const lines = { stroke: colours.line, width: 1, ...(isLog ? { filter: powers } : {}) };
    return {
      stroke: colours.faint, font: "11px system-ui, sans-serif", grid: lines, ticks: lines,
      ...(isLog ? { filter: powers } : {}), ...more,
    };
  }

  // A chart that is drawn anew when its colours change, and follows the width of its container.
  class Chart {
    constructor(container, title, said, describe) {
      container.replaceChildren();
      make(make(container, "div", "wait-tools"), "b", "", title);
      this.said = make(container, "p", "wait-said", said);
      this.plot = make(container, "div", "wait-plot");
      this.plot.setAttribute("role", "img");
      this.plot.setAttribute("aria-label", `${title}: ${said}`);
      Object.assign(this, { container, describe, drawn: null });
      new ResizeObserver(() => this.fit()).observe(container);
      iobench.onTheme(() => this.draw());
    }

    get size() {
      return { width: this.container.clientWidth, height: 230 };
    }

    fit() {
      if (this.drawn === null) this.draw();
      else if (this.container.clientWidth) this.drawn.setSize(this.size);
    }

    draw() {
      if (!this.container.clientWidth) return;
      this.drawn?.destroy();
      const colours = iobench.readColours(this.container, []).text;
      const [options, data] = this.describe(colours, this.said);
      this.drawn = new uPlot({ ...this.size, legend: { show: false }, ...options }, data, this.plot);
    }
  }

  function waitsOverTime(container, number, run) {
    const waits = run.waits_ns;
    const sorted = Float64Array.from(waits).sort();
    const mean = waits.reduce((sum, wait) => sum + wait, 0) / waits.length;
    const median = quantile(sorted, 0.5);
    const longest = sorted.at(-1);
    const isLog = longest > 20 * Math.max(median, 1);
    const epochs = epochsOf(number, run);
    const text = `mean ${duration(mean)} (line), median ${duration(median)} (dashes), longest ${duration(longest)}; `
      + "drag to zoom, click a batch to see it in the timeline";
    const tell = (step) => {
      const epoch = epochs.findLast((each) => each[1] <= step);
      return `batch ${count(step)}: ${duration(waits[step])}${epoch ? `, epoch ${count(epoch[0])}` : ""}`;
    };
    return new Chart(container, "Wait of each batch", text, (colours, said) => {
      const least = isLog ? 10 ** Math.floor(Math.log10(Math.max(sorted[0], LEAST))) : 0;
      const lift = (wait) => Math.max(wait, least);
      const sign = (ns) => (isLog && sorted[0] < least && ns <= least ? "≤ " : "");
      const line = { width: 1.2, stroke: colours.ink, points: { show: false } };
      const most = Math.max(longest, 1000);
      const options = {
        cursor: { drag: { x: true, y: false }, points: { size: 7 } },
        scales: {
          x: { time: false },
          y: isLog ? { distr: 3, range: [least, most * 1.5] } : { range: [0, most * 1.06] },
        },
        axes: [
          axis(colours, false, { values: whole }),
          axis(colours, isLog, {
            size: 70, values: (_, at) => at.map((ns) => (ns === null ? "" : sign(ns) + duration(ns))),
          }),
        ],
        series: [
          {},
          {
            stroke: colours.exposed, width: 1, fill: isLog ? undefined : colours.exposed,
            paths: isLog ? () => null : uPlot.paths.bars({ size: [0.9, Infinity, 1], align: 0 }),
            points: { show: isLog, size: 4, fill: colours.exposed, stroke: colours.exposed, width: 0 },
          },
          line,
          { ...line, dash: [5, 4] },
        ],
        hooks: {
          draw: [(plot) => drawEpochs(plot, colours, epochs)],
          setCursor: [({ cursor }) => (said.textContent = cursor.idx === null ? text : tell(cursor.idx))],
          ready: [(plot) => listen(plot, (step) => showStep(number, waits, step))],
        },
      };
      const level = (value) => waits.map(() => lift(value));
      return [options, [waits.map((_, step) => step), waits.map(lift), level(mean), level(median)]];
    });
  }

  // Where epochs begin, if the timeline knows the same steps: [[epoch, first step]].
  function epochsOf(number, run) {
    const element = document.getElementById(`iobench-timeline-meta-${number}`);
    const steps = element === null ? [] : JSON.parse(element.textContent).steps;
    return steps[0]?.n_steps === run.waits_ns.length ? steps[0].epochs : [];
  }

  // A click and not the end of a drag, which zooms.
  function listen(plot, act) {
    let from = 0;
    plot.over.addEventListener("pointerdown", (event) => (from = event.clientX));
    plot.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - from) < 4 && plot.cursor.idx !== null) act(plot.cursor.idx);
    });
  }

  function drawEpochs(plot, colours, epochs) {
    if (epochs.length < 2) return;
    const { ctx: context, bbox } = plot;
    context.save();
    context.strokeStyle = context.fillStyle = colours.faint;
    context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    let free = -Infinity;
    for (const [epoch, step] of epochs) {
      const x = Math.round(plot.valToPos(step - 0.5, "x", true));
      // Epochs of few steps: lines side by side would hide the waits.
      if (x < bbox.left - 1 || x > bbox.left + bbox.width || x < free) continue;
      const text = `epoch ${count(epoch)}`;
      context.beginPath();
      context.moveTo(x, bbox.top);
      context.lineTo(x, bbox.top + bbox.height);
      context.stroke();
      context.fillText(text, x + 4, bbox.top + 12 * devicePixelRatio);
      free = x + context.measureText(text).width + 12;
    }
    context.restore();
  }

  async function showStep(number, waits, step) {
    const timeline = await iobench.timelines?.[number];
    const brought = timeline?.spans.waits.filter((span) => timeline.spans.batch[span] >= 0);
    if (brought?.length === waits.length) timeline.lookAt(brought[step]);
  }

  // Counts in bins of equal factors, and the share of batches that waited no longer.
  function distribution(container, run) {
    const sorted = Float64Array.from(run.waits_ns).sort();
    const first = Math.floor(Math.log10(Math.max(sorted[0], SHORTEST)));
    const last = Math.floor(BINS_PER_DECADE * Math.log10(Math.max(sorted.at(-1), SHORTEST * 10)));
    const edges = [];
    for (let n = first * BINS_PER_DECADE; n <= last; n++) edges.push(10 ** (n / BINS_PER_DECADE));
    const counts = edges.map(() => 0);
    let place = 0;
    for (const wait of sorted) {
      while (place + 1 < edges.length && wait >= edges[place + 1]) place += 1;
      counts[place] += 1;
    }
    let below = 0;
    const shares = counts.map((n) => (below += n) / sorted.length);
    return new Chart(container, "Distribution of waits", halfOf(sorted), (colours) => {
      const none = { points: { show: false } };
      const options = {
        cursor: { show: false },
        scales: {
          x: { time: false, distr: 3, range: [edges[0], edges.at(-1) * 1.26] },
          y: { range: [0, Math.max(...counts, 1) * 1.12] },
          share: { range: [0, 1.12] },
        },
        axes: [
          axis(colours, true, { values: (_, at) => at.map((ns) => (ns === null ? "" : duration(ns))) }),
          axis(colours, false, { size: 46, values: whole }),
          axis(colours, false, {
            scale: "share", side: 1, size: 48, grid: { show: false },
            values: (_, at) => at.map((share) => (share > 1 ? "" : `${Math.round(100 * share)} %`)),
          }),
        ],
        series: [
          {},
          { ...none, stroke: colours.exposed, fill: `color-mix(in srgb, ${colours.exposed} 55%, transparent)`, width: 1,
            paths: uPlot.paths.bars({ size: [1, Infinity, 1], align: 1 }) },
          { ...none, scale: "share", stroke: colours.accent, width: 1.6,
            paths: uPlot.paths.stepped({ align: -1 }) },
        ],
      };
      return [options, [edges, counts, shares]];
    });
  }

  // What a mean and a median hide: how few waits hold most of the time.
  function halfOf(sorted) {
    const total = sorted.reduce((sum, wait) => sum + wait, 0);
    if (!total) return "no batch waited";
    let [held, most] = [0, 0];
    while (held < total / 2) held += sorted[sorted.length - ++most];
    return `the longest ${count(most)} of ${count(sorted.length)} waits make up half of all waiting; `
      + "bars count batches, the line is the share that waited no longer";
  }

  iobench.charts = {};
  iobench.whenReady(() => {
    const element = document.getElementById("iobench-report");
    const runs = element === null ? [] : JSON.parse(element.textContent).runs;
    for (const container of document.querySelectorAll(".wait-chart[data-run], .wait-distribution[data-run]")) {
      const number = container.dataset.run;
      const run = runs[number];
      const isOverTime = container.classList.contains("wait-chart");
      if (!run?.waits_ns?.length) container.textContent = "The wait of each batch is not known.";
      else {
        (iobench.charts[number] ??= {})[isOverTime ? "wait-chart" : "wait-distribution"] = isOverTime
          ? waitsOverTime(container, number, run)
          : distribution(container, run);
      }
    }
  });
})();
