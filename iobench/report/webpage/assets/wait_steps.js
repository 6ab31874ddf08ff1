"use strict";
// The wait of each batch over time; where epochs begin comes with the timeline's data.
(() => {
  const iobench = (window.iobench ??= {});
  const { duration, count } = iobench.quantities;
  const { Chart, axis, make, statistics } = iobench.waits;
  const LEAST = 100; // ns; the lowest line of a logarithmic scale, which has no zero

  // Where epochs begin, if the timeline knows the same steps: [[epoch, first step]].
  function epochsOf(number, run) {
    const element = document.getElementById(`iobench-timeline-meta-${number}`);
    if (element === null) return [];
    const steps = JSON.parse(element.textContent).steps ?? [];
    const mine = steps.find((each) => each.rank === run.rank) ?? (steps.length === 1 ? steps[0] : null);
    return mine && mine.n_steps === run.waits_ns.length ? mine.epochs : [];
  }

  // Logarithmic scales have no zero: what took no time stands on the lowest line.
  class WaitChart extends Chart {
    constructor(container, number, run) {
      super(container, "Wait of each batch");
      this.waits = run.waits_ns;
      this.number = number;
      this.epochs = epochsOf(number, run);
      this.stats = statistics(this.waits);
      this.isLog = this.stats.value("longest") > 20 * Math.max(this.stats.value("median"), 1);
      const mark = this.addToggle([["Linear", false], ["Logarithmic", true]], (log) => (this.isLog = log));
      mark(this.isLog);
      const whole = make(this.tools, "button", "", "All batches");
      whole.type = "button";
      whole.addEventListener("click", () => this.draw());
      this.plot.setAttribute("role", "img");
      const { value } = this.stats;
      this.plot.setAttribute(
        "aria-label",
        `Wait of ${count(this.waits.length)} batches: mean ${duration(value("mean"))}, median ` +
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
            "drag to zoom, click a batch to see it in the timeline"
          : `batch ${count(step)}: ${duration(this.waits[step])}${this.epochText(step)}`;
    }

    epochText(step) {
      const epoch = this.epochs.findLast((each) => each[1] <= step);
      return epoch ? `, epoch ${count(epoch[0])}` : "";
    }

    describe(colours) {
      const { value } = this.stats;
      const shortest = Math.max(this.stats.sorted[0], LEAST);
      const least = this.isLog ? 10 ** Math.floor(Math.log10(shortest)) : 0;
      const lift = (wait) => Math.max(wait, least);
      const steps = this.waits.map((_, step) => step);
      const level = (name) => this.waits.map(() => lift(value(name)));
      const data = [steps, this.waits.map(lift), level("mean"), level("median")];
      const isCut = this.isLog && this.stats.sorted[0] < least;
      const sign = (ns) => (isCut && ns <= least ? "≤ " : "");
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
            { size: 70, values: (_, at) => at.map((ns) => (ns === null ? "" : sign(ns) + duration(ns))) },
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
          ready: [(plot) => this.listen(plot)],
        },
      };
      return { options, data };
    }

    // A click and not the end of a drag, which zooms.
    listen(plot) {
      let from = 0;
      plot.over.addEventListener("pointerdown", (event) => (from = event.clientX));
      plot.over.addEventListener("click", (event) => {
        if (Math.abs(event.clientX - from) < 4) this.showStep(plot.cursor.idx);
      });
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

  iobench.WaitChart = WaitChart;
})();
