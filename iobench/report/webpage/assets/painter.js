"use strict";
// Bars into pixels. A run has more spans than a screen has points, so a row is summed up column by
// column first (how much of it is covered, in which colours, how much was waited for) and then
// written as pixels: the price of a frame is one addition for each span, however many there are.
(() => {
  const iobench = (window.iobench ??= {});
  const LITTLE = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;
  const FAINTEST = 0.08; // What is far shorter than a pixel must still be seen, and seen as little.
  const N_SUMS = 8;
  const TRACE = 0.001; // pixels that a span of no time covers

  const packed = (r, g, b) =>
    (LITTLE ? (255 << 24) | (b << 16) | (g << 8) | r : (r << 24) | (g << 16) | (b << 8) | 255) >>> 0;

  function mixed(a, b, share) {
    return packed(
      a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share, a[2] + (b[2] - a[2]) * share
    );
  }

  // Colours of the page: as its style spells them, and as [r, g, b].
  function readColours(element, kinds) {
    const style = getComputedStyle(element);
    const read = (name) => style.getPropertyValue(name).trim();
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 1;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    const numbers = (colour) => {
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
      return [...context.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
    };
    const text = { ground: read("--panel") || read("--ground") };
    for (const name of ["ink", "faint", "line", "accent", "exposed"]) text[name] = read(`--${name}`);
    return {
      text,
      ground: numbers(text.ground),
      exposed: numbers(text.exposed),
      unknown: numbers(read("--unknown")),
      kinds: kinds.map((kind) => numbers(kind === "wait" ? text.exposed : read(`--kind-${kind}`) || text.faint)),
    };
  }

  class Painter {
    constructor(spans) {
      this.spans = spans;
      this.width = 0;
    }

    setColours(colours) {
      const { sorts } = this.spans;
      this.ground = colours.ground;
      this.exposed = colours.exposed;
      this.unknown = colours.unknown;
      // Batches in queues take nobody's time: they stay in the background.
      this.kinds = colours.kinds.map((colour, stage) =>
        this.spans.meta.queued[stage]
          ? colour.map((part, channel) => part + (colours.ground[channel] - part) * 0.6)
          : colour
      );
      // How strong a bar's body is: what was hidden stays in the background.
      this.strength = sorts.map((sort) => (sort === "loop" ? 0.5 : 0.3));
      this.loads = sorts.map((sort) => sort === "load" || sort === "hand-over");
      // The stretch of a round or an epoch lies below all else and says little.
      this.spans.meta.stages.forEach((stage, number) => {
        if (stage === "other:round") this.strength[number] = 0.12;
      });
    }

    begin(image) {
      this.pixels = new Uint32Array(image.data.buffer);
      if (this.width !== image.width) {
        this.width = image.width;
        this.sums = new Float32Array(N_SUMS * this.width);
        this.edge = new Uint8Array(this.width);
      }
      this.height = image.height;
      this.pixels.fill(packed(...this.ground));
    }

    // Draw a row of spans at `top`, `height` pixels high. `chosen`: null, or which spans belong to
    // the batch that is looked at, by span; all others step back.
    row(row, view, top, height, isShown, chosen) {
      if (top + height <= 0 || top >= this.height) return;
      this.sums.fill(0);
      this.edge.fill(0);
      this._sum(row, view, isShown, chosen);
      this._write(top, height);
    }

    // Of each column: how much is covered; times that, red, green, blue, what share was waited for,
    // of waits, how strong the body is, and what is unknown.
    _sum(row, view, isShown, chosen) {
      const { spans, width, kinds, ground, edge, sums } = this;
      const { start, length, stage, exposed, sorts } = spans;
      const scale = width / (view.to - view.from);
      const values = new Float32Array(N_SUMS);
      values[0] = 1;
      for (let place = spans.firstAfter(row, view.from); place < row.length; place++) {
        const span = row[place];
        const begin = (start[span] - view.from) * scale;
        if (begin >= width) break;
        const kind = stage[span];
        if (!isShown[kind]) continue;
        const x0 = Math.max(begin, 0);
        const x1 = Math.min(begin + length[span] * scale, width);
        const isBack = chosen !== null && !chosen.has(span);
        const isWait = sorts[kind] === "wait";
        for (let channel = 0; channel < 3; channel++) {
          const colour = kinds[kind][channel];
          values[1 + channel] = isBack ? colour + (ground[channel] - colour) * 0.75 : colour;
        }
        values[4] = isBack || exposed[span] <= 0 ? 0 : isWait ? 1 : exposed[span] / length[span];
        values[5] = isWait && !isBack ? 1 : 0;
        values[6] = this.strength[kind];
        values[7] = this.loads[kind] && exposed[span] < 0 ? 1 : 0;
        const first = x0 | 0;
        for (let x = first; x < x1 || x === first; x++) {
          const weight = Math.max(Math.min(x1, x + 1) - Math.max(x0, x), TRACE);
          for (let sum = 0; sum < N_SUMS; sum++) sums[N_SUMS * x + sum] += values[sum] * weight;
        }
        if (x1 - x0 > 4 && begin >= 0) edge[first] = 1;
      }
    }

    // A bar has a cap in the colour of its stage; below it, the part that was waited for is
    // filled from the bottom, waits are hatched, what was hidden is pale.
    _write(top, height) {
      const { sums, ground, exposed, unknown, pixels, width } = this;
      const low = Math.max(top, 0);
      const high = Math.min(top + height, this.height);
      const cap = Math.max(Math.round(height * 0.22), 2);
      for (let x = 0; x < width; x++) {
        const covered = sums[N_SUMS * x];
        if (covered === 0) continue;
        const [, red, green, blue, waited, waits, strength, blank] = sums
          .subarray(N_SUMS * x, N_SUMS * (x + 1)).map((sum) => sum / covered);
        const full = covered >= 0.999 ? 1 : FAINTEST + (1 - FAINTEST) * Math.sqrt(covered);
        const alpha = this.edge[x] ? full * 0.55 : full;
        const colour = [red, green, blue];
        const head = mixed(ground, colour, alpha);
        const pale = blank > 0.5 ? mixed(ground, unknown, alpha * 0.3) : mixed(ground, colour, alpha * strength);
        const strong = mixed(ground, exposed, alpha);
        const soft = mixed(ground, exposed, alpha * 0.62);
        const part = Math.min(waited, 1);
        const tall = part > 0 ? Math.max(Math.round(part * (height - cap)), 2) : 0;
        for (let y = low; y < high; y++) {
          const depth = y - top;
          let pixel = depth < cap ? head : depth >= height - tall ? strong : pale;
          if (waits > 0.5) pixel = ((x + y) >> 2) & 1 ? strong : soft;
          pixels[y * width + x] = pixel;
        }
      }
    }
  }

  Object.assign(iobench, { Painter, readColours });
})();
