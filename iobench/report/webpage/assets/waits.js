"use strict";
// What the charts of waits share: statistics, colours, and a chart that follows its container.
(() => {
  const iobench = (window.iobench ??= {});
  const QUANTILES = [[0.5, "median"], [0.9, "90 %"], [0.95, "95 %"], [0.99, "99 %"]];

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

  iobench.waits = { Chart, axis, make, statistics };
})();
