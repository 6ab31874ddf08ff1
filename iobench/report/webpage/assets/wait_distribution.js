"use strict";
// How waits are distributed: a mean alone hides the few that are long, a median all of them.
(() => {
  const iobench = (window.iobench ??= {});
  const { duration, count, fraction } = iobench.quantities;
  const { Chart, axis, make, statistics } = iobench.waits;
  const BINS_PER_DECADE = 10;
  const LEAST = 1e3; // ns; shorter waits are one bin: a call that found its batch ready

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
      if (!total) return "no batch waited";
      let held = 0;
      let most = 0;
      for (let place = sorted.length - 1; held < total / 2; place--) {
        held += sorted[place];
        most += 1;
      }
      const longest = most === 1 ? `one wait of ${count(sorted.length)} holds`
        : `the longest ${count(most)} of ${count(sorted.length)} waits hold`;
      return `${longest} half of all waiting; ` +
        "bars count batches, the line is the share that waited no longer";
    }

    addTable() {
      const details = make(this.container, "details");
      make(details, "summary", "", "Quantiles as a table");
      const table = make(details, "table");
      const head = make(make(table, "thead"), "tr");
      for (const text of ["Wait of a batch", "Time", "Share of all waiting in longer ones"]) {
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
      this.said.textContent = `${count(counts[place])} batches waited ${range}`;
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

  iobench.WaitDistribution = WaitDistribution;
})();
