"use strict";
// The wait of each step over time, and how waits are distributed. Both take `waits_ns` of a run
// from the report's document; where epochs begin comes with the timeline's data.
(() => {
  const iobench = (window.iobench ??= {});
  const { duration, count, fraction } = iobench.quantities;
  const QUANTILES = [[0.5, "median"], [0.9, "90 %"], [0.95, "95 %"], [0.99, "99 %"]];
  const BINS_PER_DECADE = 10;
  const LEAST = 1e3; // ns; shorter waits are one bin: a call that found its batch ready

  function make(parent, tag, name, text) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    parent?.append(element);
    return element;
  }

  // Of sorted values, with those between two taken in proportion, as numpy.quantile does.
  function quantile(sorted, share) {
    const place = share * (sorted.length - 1);
    const low = Math.floor(place);
    const high = Math.min(low + 1, sorted.length - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
  }

  function statistics(waits) {
    const sorted = Float64Array.from(waits).sort();
    const total = waits.reduce((sum, wait) => sum + wait, 0);
    const rows = [["mean", total / waits.length]];
    for (const [share, name] of QUANTILES) rows.push([name, quantile(sorted, share)]);
    rows.push(["longest", sorted.at(-1)]);
    return { sorted, total, rows, value: (name) => rows.find((row) => row[0] === name)[1] };
  }

  // Where epochs begin, if the timeline knows the same steps: [[epoch, first step]].
  function epochsOf(number, run) {
    const element = document.getElementById(`iobench-timeline-meta-${number}`);
    if (element === null) return [];
    const steps = JSON.parse(element.textContent).steps ?? [];
    const mine = steps.find((each) => each.rank === run.rank) ?? (steps.length === 1 ? steps[0] : null);
    return mine && mine.n_steps === run.waits_ns.length ? mine.epochs : [];
  }

  function coloursOf(element) {
    const style = getComputedStyle(element);
    const read = (name, spare) => style.getPropertyValue(name).trim() || spare;
    return {
      ink: read("--ink", "#1a1d21"), faint: read("--faint", "#5d6570"),
      line: read("--line", "#d9dde2"), accent: read("--accent", "#0b62c4"),
      exposed: read("--exposed", "#d6402b"), ground: read("--panel", read("--ground", "#fff")),
    };
  }

  const isPower = (value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-6;
  // Of a logarithmic axis only whole powers have lines: all others make a grey field of them.
  const powers = (_, at) => at.map((value) => (value !== null && isPower(value) ? value : null));

  function axis(colours, more, isLog = false) {
    const lines = { stroke: colours.line, width: 1, ...(isLog ? { filter: powers } : {}) };
    return {
      stroke: colours.faint, font: "11px system-ui, sans-serif", grid: lines, ticks: lines,
      ...(isLog ? { filter: powers } : {}), ...more,
    };
  }

  // A chart that is made anew when its colours or its scale change, and follows its container.
  class Chart {
    constructor(container, title) {
      this.container = container;
      container.replaceChildren();
      this.tools = make(container, "div", "wait-tools");
      make(this.tools, "b", "", title);
      this.said = make(container, "p", "wait-said");
      this.plot = make(container, "div", "wait-plot");
      this.isLog = true;
      this.drawn = null;
      new ResizeObserver(() => this.fit()).observe(container);
      const again = () => this.draw();
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
      new MutationObserver(again).observe(document.documentElement, {
        attributes: true, attributeFilter: ["data-theme", "class"],
      });
    }

    get size() {
      return { width: this.container.clientWidth, height: 230 };
    }

    fit() {
      if (!this.container.clientWidth) return;
      if (this.drawn === null) this.draw();
      else this.drawn.setSize(this.size);
    }

    draw() {
      if (!this.container.clientWidth) return;
      this.drawn?.destroy();
      const { options, data } = this.describe(coloursOf(this.container));
      this.drawn = new uPlot({ ...this.size, ...options }, data, this.plot);
    }

    addToggle(names, act) {
      const buttons = names.map(([name, value]) => {
        const each = make(this.tools, "button", "", name);
        each.type = "button";
        each.addEventListener("click", () => {
          act(value);
          mark(value);
          this.draw();
        });
        return [each, value];
      });
      const mark = (chosen) => {
        for (const [each, value] of buttons) each.setAttribute("aria-pressed", String(value === chosen));
      };
      return mark;
    }
  }

  // Logarithmic scales have no zero: what took no time stands on the lowest line.
  class WaitChart extends Chart {
    constructor(container, number, run) {
      super(container, "Wait of each step");
      this.waits = run.waits_ns;
      this.number = number;
      this.epochs = epochsOf(number, run);
      this.stats = statistics(this.waits);
      this.isLog = this.stats.value("longest") > 20 * Math.max(this.stats.value("median"), 1);
      const mark = this.addToggle([["Linear", false], ["Logarithmic", true]], (log) => (this.isLog = log));
      mark(this.isLog);
      const whole = make(this.tools, "button", "", "All steps");
      whole.type = "button";
      whole.addEventListener("click", () => this.draw());
      this.plot.setAttribute("role", "img");
      const { value } = this.stats;
      this.plot.setAttribute(
        "aria-label",
        `Wait of ${count(this.waits.length)} steps: mean ${duration(value("mean"))}, median ` +
          `${duration(value("median"))}, longest ${duration(value("longest"))}. The table of ` +
          "quantiles is below."
      );
      this.tell(null);
    }

    tell(step) {
      const { value } = this.stats;
      this.said.textContent =
        step === null
          ? `mean ${duration(value("mean"))} (line), median ${duration(value("median"))} (dashes); ` +
            "drag to zoom, click a step to see it in the timeline"
          : `step ${count(step)}: ${duration(this.waits[step])}${this.epochText(step)}`;
    }

    epochText(step) {
      const epoch = this.epochs.findLast((each) => each[1] <= step);
      return epoch ? `, epoch ${count(epoch[0])}` : "";
    }

    describe(colours) {
      const { value } = this.stats;
      const shortest = Math.max(this.stats.sorted[0], LEAST / 10);
      const least = this.isLog ? 10 ** Math.floor(Math.log10(shortest)) : 0;
      const lift = (wait) => Math.max(wait, least);
      const steps = this.waits.map((_, step) => step);
      const level = (name) => this.waits.map(() => lift(value(name)));
      const data = [steps, this.waits.map(lift), level("mean"), level("median")];
      const line = { width: 1.2, stroke: colours.ink, points: { show: false } };
      const most = Math.max(value("longest"), 1000);
      const options = {
        legend: { show: false },
        cursor: { drag: { x: true, y: false }, points: { size: 7 } },
        scales: {
          x: { time: false },
          y: this.isLog
            ? { distr: 3, range: [least, most * 1.5] }
            : { range: (_, low, high) => [0, Math.max(high, 1000) * 1.06] },
        },
        axes: [
          axis(colours, { values: (_, at) => at.map((step) => (Number.isInteger(step) ? count(step) : "")) }),
          axis(
            colours,
            { size: 62, values: (_, at) => at.map((ns) => (ns === null ? "" : duration(ns))) },
            this.isLog
          ),
        ],
        series: [
          {},
          {
            stroke: colours.exposed, width: 1, fill: this.isLog ? undefined : `${colours.exposed}`,
            paths: this.isLog ? () => null : uPlot.paths.bars({ size: [0.9, Infinity, 1], align: 0 }),
            points: { show: this.isLog, size: 4, fill: colours.exposed, stroke: colours.exposed, width: 0 },
          },
          { ...line },
          { ...line, dash: [5, 4] },
        ],
        hooks: {
          draw: [(plot) => this.drawEpochs(plot, colours)],
          setCursor: [(plot) => this.tell(plot.cursor.idx ?? null)],
          ready: [(plot) => plot.over.addEventListener("click", () => this.showStep(plot.cursor.idx))],
        },
      };
      return { options, data };
    }

    drawEpochs(plot, colours) {
      if (this.epochs.length < 2) return;
      const { ctx: context, bbox } = plot;
      context.save();
      context.strokeStyle = context.fillStyle = colours.faint;
      context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      context.textAlign = "left";
      context.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
      let free = -Infinity;
      let last = -Infinity;
      for (const [epoch, step] of this.epochs) {
        const x = Math.round(plot.valToPos(step - 0.5, "x", true));
        // Epochs of few steps: lines side by side would hide the waits.
        if (x < bbox.left - 1 || x > bbox.left + bbox.width || x < last + 24) continue;
        last = x;
        context.beginPath();
        context.moveTo(x, bbox.top);
        context.lineTo(x, bbox.top + bbox.height);
        context.stroke();
        const text = `epoch ${count(epoch)}`;
        if (x < free) continue;
        context.fillText(text, x + 4, bbox.top + 12 * devicePixelRatio);
        free = x + context.measureText(text).width + 12;
      }
      context.restore();
    }

    async showStep(step) {
      const timeline = await iobench.timelines?.[this.number];
      if (step === null || step === undefined || !timeline) return;
      const brought = timeline.spans.waits.filter((span) => timeline.spans.batch[span] >= 0);
      if (brought.length !== this.waits.length) return;
      timeline.waitPlace = timeline.spans.longest.indexOf(brought[step]);
      timeline.showSpan(brought[step], 5);
      timeline.say(brought[step]);
    }
  }

  // Counts in bins of equal factors, and the share of steps that waited no longer.
  class WaitDistribution extends Chart {
    constructor(container, run) {
      super(container, "Distribution of waits");
      this.waits = run.waits_ns;
      this.stats = statistics(this.waits);
      this.bins = binned(this.stats.sorted);
      this.plot.setAttribute("role", "img");
      this.plot.setAttribute("aria-label", "Histogram of waits; its quantiles are in the table below.");
      this.said.textContent = this.sentence();
      this.addTable();
    }

    // What a mean and a median hide: how few waits hold most of the time.
    sentence() {
      const { sorted, total } = this.stats;
      if (!total) return "no step waited";
      let held = 0;
      let most = 0;
      for (let place = sorted.length - 1; held < total / 2; place--) {
        held += sorted[place];
        most += 1;
      }
      const longest = most === 1 ? `one wait of ${count(sorted.length)} holds`
        : `the longest ${count(most)} of ${count(sorted.length)} waits hold`;
      return `${longest} half of all waiting; ` +
        "bars count steps, the line is the share that waited no longer";
    }

    addTable() {
      const details = make(this.container, "details");
      make(details, "summary", "", "Quantiles as a table");
      const table = make(details, "table");
      const head = make(make(table, "thead"), "tr");
      for (const text of ["Wait of a step", "Time", "Share of all waiting in longer ones"]) {
        make(head, "th", "", text).scope = "col";
      }
      const body = make(table, "tbody");
      const { sorted, total, rows } = this.stats;
      for (const [name, value] of rows) {
        const row = make(body, "tr");
        make(row, "th", "", name).scope = "row";
        make(row, "td", "", duration(value));
        const above = sorted.filter((wait) => wait > value).reduce((sum, wait) => sum + wait, 0);
        make(row, "td", "", total ? fraction(above / total) : "unknown");
      }
    }

    describe(colours) {
      const { edges, counts, shares } = this.bins;
      const most = Math.max(...counts, 1);
      const data = [edges, counts, shares];
      const options = {
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: {
          x: { time: false, distr: 3, range: [edges[0], edges.at(-1) * 1.26] },
          y: { range: [0, most * 1.12] },
          share: { range: [0, 1.12] },
        },
        axes: [
          axis(colours, { values: (_, at) => at.map((ns) => (ns === null ? "" : duration(ns))) }, true),
          axis(colours, { size: 46, values: (_, at) => at.map((n) => (Number.isInteger(n) ? count(n) : "")) }),
          axis(colours, {
            scale: "share", side: 1, size: 48, grid: { show: false },
            values: (_, at) => at.map((share) => (share > 1 ? "" : fraction(share))),
          }),
        ],
        series: [
          {},
          {
            stroke: colours.exposed, fill: `color-mix(in srgb, ${colours.exposed} 55%, transparent)`,
            width: 1, paths: uPlot.paths.bars({ size: [1, Infinity], align: 1 }), points: { show: false },
          },
          { scale: "share", stroke: colours.accent, width: 1.6, points: { show: false },
            paths: uPlot.paths.stepped({ align: -1 }) },
        ],
        hooks: {
          draw: [(plot) => this.drawMarks(plot, colours)],
          setCursor: [(plot) => this.tell(plot.cursor.idx ?? null)],
        },
      };
      return { options, data };
    }

    tell(place) {
      const { edges, counts } = this.bins;
      if (place === null || place >= counts.length) {
        this.said.textContent = this.sentence();
        return;
      }
      const to = duration(edges[place + 1] ?? edges[place] * 10 ** (1 / BINS_PER_DECADE));
      const range = place ? `${duration(edges[place])} to ${to}` : `below ${to}`;
      this.said.textContent = `${count(counts[place])} steps waited ${range}`;
    }

    drawMarks(plot, colours) {
      const { ctx: context, bbox } = plot;
      context.save();
      context.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      context.textAlign = "left";
      context.lineJoin = "round";
      ["median", "mean", "99 %"].forEach((name, line) => {
        const value = Math.max(this.stats.value(name), this.bins.edges[0]);
        const x = Math.round(plot.valToPos(value, "x", true));
        context.strokeStyle = context.fillStyle = colours.ink;
        context.setLineDash(name === "mean" ? [] : [5 * devicePixelRatio, 4 * devicePixelRatio]);
        context.beginPath();
        context.moveTo(x, bbox.top);
        context.lineTo(x, bbox.top + bbox.height);
        context.stroke();
        const text = `${name} ${duration(this.stats.value(name))}`;
        const width = context.measureText(text).width;
        const isRight = x + 4 + width < bbox.left + bbox.width;
        const place = [isRight ? x + 4 : x - 4 - width, bbox.top + (12 + 13 * line) * devicePixelRatio];
        context.setLineDash([]);
        context.strokeStyle = colours.ground;
        context.lineWidth = 3 * devicePixelRatio;
        context.strokeText(text, ...place);
        context.lineWidth = devicePixelRatio;
        context.fillText(text, ...place);
      });
      context.restore();
    }
  }

  function binned(sorted) {
    const first = Math.floor(Math.log10(Math.max(sorted[0], LEAST)));
    const last = Math.floor(BINS_PER_DECADE * Math.log10(Math.max(sorted.at(-1), LEAST * 10)));
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
    return { edges, counts, shares };
  }

  function waitsOf(report, container) {
    const run = report.runs[Number(container.dataset.run)];
    return run?.waits_ns?.length ? run : null;
  }

  iobench.charts = {};
  iobench.whenReady(() => {
    const element = document.getElementById("iobench-report");
    if (element === null) return;
    const report = JSON.parse(element.textContent);
    for (const [name, Kind] of [["wait-chart", WaitChart], ["wait-distribution", WaitDistribution]]) {
      for (const container of document.querySelectorAll(`.${name}[data-run]`)) {
        const run = waitsOf(report, container);
        const number = container.dataset.run;
        if (run === null) container.textContent = "The wait of each step is not known.";
        else {
          const made = Kind === WaitChart ? new Kind(container, number, run) : new Kind(container, run);
          (iobench.charts[number] ??= {})[name] = made;
        }
      }
    }
  });
})();
