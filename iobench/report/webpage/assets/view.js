"use strict";
// What of a run is seen: a stretch of time, and lanes one below the other.
(() => {
  const iobench = (window.iobench ??= {});
  const NARROWEST = 200; // ns; shorter stretches show nothing that was measured
  const ROW = 17;
  const GAP = 7;

  class View {
    constructor(length) {
      this.length = Math.max(length, NARROWEST);
      this.from = 0;
      this.to = this.length;
    }

    get width() {
      return this.to - this.from;
    }

    show(from, to) {
      const width = Math.min(Math.max(to - from, NARROWEST), this.length);
      // Too narrow: around its middle. Beyond an end: moved back.
      const start = from + (to - from - width) / 2;
      this.from = Math.min(Math.max(start, 0), this.length - width);
      this.to = this.from + width;
    }

    // Make the stretch `factor` times as long; what is at `share` of it stays there.
    zoom(factor, share = 0.5) {
      const width = Math.min(Math.max(this.width * factor, NARROWEST), this.length);
      const from = this.from + (this.width - width) * share;
      this.show(from, from + width);
    }

    pan(share) {
      const by = this.width * share;
      this.show(this.from + by, this.to + by);
    }
  }

  // Where each lane lies: [{lane, top, rows: [{row, top}]}].
  function layOut(spans, labelHeight) {
    let top = 4;
    const lanes = spans.shared.map((lane) => {
      const rows = lane.rows.map((row, depth) => ({ row, top: top + labelHeight + depth * ROW }));
      const place = { lane, top, rows };
      top += labelHeight + rows.length * ROW + GAP;
      return place;
    });
    return { lanes, height: top, rowHeight: ROW - 1 };
  }

  // Round moments at least `apart` pixels from each other, and how they are written.
  function ticks(view, pixels, apart) {
    const least = (view.width / Math.max(pixels, 1)) * apart;
    let step = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    for (const factor of [2, 2.5, 2]) if (step < least) step *= factor;
    const units = [["s", 1e9], ["ms", 1e6], ["us", 1e3]];
    const [unit, size] = units.find((each) => view.length >= each[1]) ?? ["ns", 1];
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
    const result = [];
    for (let n = Math.ceil(view.from / step); n * step <= view.to; n++) {
      result.push({ at: n * step, text: `${((n * step) / size).toFixed(decimals)} ${unit}` });
    }
    return result;
  }

  Object.assign(iobench, { View, layOut, ticks });
})();
