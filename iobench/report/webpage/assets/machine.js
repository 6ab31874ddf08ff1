"use strict";
// What the machine did meanwhile: a row for each figure below the lanes, over the same time.
(() => {
  const iobench = (window.iobench ??= {});
  const { nbytes, byteRate, fraction } = iobench.quantities;
  const ROW = 17;
  const GAP = 5;
  const STEPS = 1000; // values are in so many steps of a row's top
  const PRINT = { share: fraction, bytes: nbytes, rate: byteRate };

  function rowsOf(groups, labelHeight) {
    const rows = [];
    let top = 0;
    for (const { edges, lanes } of groups) {
      for (const lane of lanes) {
        top += GAP + labelHeight;
        rows.push({ lane, edges, top });
        top += ROW;
      }
    }
    return { rows, height: top + GAP };
  }

  class Machine {
    constructor(timeline, canvas) {
      this.timeline = timeline;
      this.canvas = canvas;
      canvas.addEventListener("pointermove", (event) => this._hover(event.offsetX, event.offsetY));
      canvas.addEventListener("pointerleave", () => timeline.hideTip());
    }

    layOut() {
      const { canvas, timeline } = this;
      const { dpr, gutter, plotWidth, spans } = timeline;
      this.places = rowsOf(spans.meta.machine, gutter ? 0 : 13);
      canvas.width = Math.round((gutter + plotWidth) * dpr);
      canvas.height = Math.round(this.places.height * dpr);
      canvas.style.width = `${gutter + plotWidth}px`;
      canvas.style.height = `${this.places.height}px`;
    }

    draw() {
      const { canvas, places, timeline } = this;
      const { dpr, gutter, plotWidth, view, colours } = timeline;
      const context = canvas.getContext("2d");
      context.setTransform(dpr, 0, 0, dpr, 0, 0);
      context.clearRect(0, 0, gutter + plotWidth, places.height);
      context.font = "11.5px system-ui, sans-serif";
      context.textBaseline = "middle";
      const scale = plotWidth / view.width;
      for (const row of places.rows) {
        const { lane, top } = row;
        context.globalAlpha = 0.5;
        context.fillStyle = colours.text.line;
        context.fillRect(gutter, top + ROW - 0.5, plotWidth, 0.5);
        context.fillStyle = colours.text.accent;
        context.globalAlpha = 0.75;
        this._fill(context, row, gutter, scale);
        context.globalAlpha = 1;
        context.fillStyle = gutter ? colours.text.ink : colours.text.faint;
        const y = gutter ? top + ROW / 2 : top - 6;
        context.fillText(lane.name, 0, y, gutter ? gutter - 10 : plotWidth);
      }
    }

    _fill(context, { lane, edges, top }, gutter, scale) {
      const { view, plotWidth, dpr } = this.timeline;
      const { values } = lane;
      // Whole pixels: steps that touch have no seam.
      const place = (moment) => {
        const x = Math.min(Math.max((moment - view.from) * scale, 0), plotWidth);
        return Math.round(x * dpr) / dpr;
      };
      for (let step = this._stepAt(edges, view.from); step < values.length; step++) {
        const from = edges[step] * 1000;
        if (from >= view.to) break;
        if (!values[step]) continue;
        const x0 = place(from);
        const x1 = Math.max(place(edges[step + 1] * 1000), x0 + 1 / dpr);
        const tall = Math.max((values[step] / STEPS) * ROW, 0.5);
        context.fillRect(gutter + x0, top + ROW - tall, x1 - x0, tall);
      }
    }

    // The step that a moment lies in; the first if it lies before all.
    _stepAt(edges, moment) {
      return Math.max(edges.findLastIndex((edge) => edge * 1000 <= moment), 0);
    }

    _hover(x, y) {
      const { timeline, places } = this;
      const { gutter, plotWidth, view } = timeline;
      const row = places.rows.find(({ top }) => y >= top && y <= top + ROW);
      const moment = view.from + ((x - gutter) * view.width) / plotWidth;
      const step = row && x >= gutter ? this._stepAt(row.edges, moment) : -1;
      const inside = step >= 0 && step < row.lane.values.length && row.edges[0] * 1000 <= moment;
      if (!inside) {
        timeline.hideTip();
        return;
      }
      const value = row.lane.values[step];
      const { at } = iobench.describe;
      const said = value === null ? "unknown" : PRINT[row.lane.unit]((value / STEPS) * row.lane.top);
      const when = `${at(row.edges[step] * 1000)} to ${at(row.edges[step + 1] * 1000)}`;
      timeline.tellTip(row.lane.name, [["Mean", said], ["From", when]], x - gutter, y, this.canvas);
    }
  }

  iobench.Machine = Machine;
})();
