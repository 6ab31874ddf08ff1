"use strict";
// The timeline of a run: <div class="timeline" data-run="N">, filled from the data of run N.
(() => {
  const iobench = (window.iobench ??= {});
  const { View, Spans, Painter, layOut, ticks, readColours, describe, frame } = iobench;
  const { make } = frame;
  const NARROW = 620; // px; below, names of lanes stand above them
  const NAMES = 148;

  class Timeline {
    constructor(container, spans) {
      this.container = container;
      this.spans = spans;
      this.view = new View(spans.meta.length_ns);
      this.painter = new Painter(spans);
      this.isShown = spans.meta.stages.map(() => true);
      this.focus = -1; // span looked at
      this.chosen = null; // spans of its batch, as a Set
      this.waitPlace = -1; // of the wait looked at, among the longest
      this.frames = 0;
      frame.build(this);
      frame.listen(this);
      this._watch();
    }

    _watch() {
      // Its height follows from what is laid out, and is nothing to lay out for.
      new ResizeObserver(() => {
        if (this.container.clientWidth !== this.knownWidth) this.layOut();
      }).observe(this.container);
      iobench.onTheme(() => {
        this.colours = null;
        this.redraw();
      });
      this.scroller.addEventListener("scroll", () => this.redraw(), { passive: true });
    }

    // Sizes of everything; where the container has none (a closed tab), nothing is drawn.
    layOut() {
      const width = (this.knownWidth = this.container.clientWidth);
      if (!width) return;
      this.gutter = width < NARROW ? 0 : NAMES;
      this.places = layOut(this.spans, this.gutter ? 0 : 16);
      const most = Math.max(Math.min(innerHeight * 0.62, 620), 160);
      this.height = Math.min(this.places.height, most);
      this.scroller.style.height = `${this.height}px`;
      this.space.style.height = `${this.places.height}px`;
      this.container.style.setProperty("--tl-gutter", `${this.gutter}px`);
      this.plotWidth = Math.max(this.scroller.clientWidth - this.gutter, 40);
      this.dpr = window.devicePixelRatio || 1;
      for (const [canvas, height] of [[this.canvas, this.height], [this.axis, 22]]) {
        canvas.width = Math.round(this.plotWidth * this.dpr);
        canvas.height = Math.round(height * this.dpr);
        canvas.style.width = `${this.plotWidth}px`;
        canvas.style.height = `${height}px`;
      }
      this.machine?.layOut();
      this._nameLanes();
      this.redraw();
    }

    _nameLanes() {
      this.names.replaceChildren();
      for (const { lane, top } of this.places.lanes) {
        const name = make(this.names, "div", lane.is_loop ? "tl-name loop" : "tl-name", lane.name);
        if (!lane.is_closed) name.append(" ✝");
        const pids = lane.parts.map((part) => part.pid + (part.is_closed ? "" : " (did not end by itself)"));
        name.title = `${lane.name}, process ${pids.join(", then ")}`;
        name.style.top = `${top}px`;
      }
    }

    change(act) {
      act();
      this.hideTip();
      this.redraw();
    }

    // Look at a wait, the next longest or the one before; its batch stands out in all lanes.
    stepWait(direction) {
      const { longest } = this.spans;
      const place = Math.max(this.waitPlace + direction, direction < 0 ? -1 : 0);
      if (longest.length) this.lookAt(longest.at(place % longest.length));
    }

    lookAt(wait) {
      this.waitPlace = this.spans.longest.indexOf(wait);
      this.showSpan(wait);
      this.say(wait);
    }

    // Bring a span into view, with its batch where that is no more than five times its length away.
    showSpan(span) {
      const { spans, view } = this;
      let from = spans.start[span];
      let to = spans.end(span);
      for (const each of spans.ofBatch(span)) {
        if (spans.sortOf(each) === "load") from = Math.min(from, spans.start[each]);
      }
      from = Math.max(from, spans.start[span] - 5 * Math.max(spans.length[span], 1000));
      const margin = Math.max((to - from) * 0.15, 2000);
      view.show(from - margin, to + margin);
      this.choose(span);
      const { top } = this.places.lanes.find(({ lane }) => lane.numbers.includes(spans.lane[span]));
      const above = this.scroller.scrollTop;
      if (top < above || top + 40 > above + this.height) this.scroller.scrollTop = top - 30;
    }

    choose(span) {
      this.focus = span;
      if (span < 0) this.live.textContent = "";
      // Without a batch, as the start of a loader, there is nothing for others to step back from.
      const hasBatch = span >= 0 && this.spans.batch[span] >= 0;
      this.chosen = hasBatch ? new Set(this.spans.ofBatch(span)) : null;
      this.hideTip();
      this.redraw();
    }

    // For those who hear the page, and below the lanes for all.
    say(span) {
      const { spans } = this;
      const place = spans.longest.indexOf(span);
      this.live.textContent = place < 0
        ? describe.facts(spans, span).map((pair) => pair.join(" ")).join("; ")
        : describe.waitSentence(spans, span, place);
    }

    redraw() {
      if (this.pending || !this.plotWidth) return;
      this.pending = true;
      requestAnimationFrame(() => {
        this.pending = false;
        this.draw();
      });
    }

    draw() {
      this.colours ??= readColours(this.container, this.spans.meta.kinds);
      this.painter.setColours(this.colours);
      const context = this.canvas.getContext("2d");
      const { width, height } = this.canvas;
      if (this.image?.width !== width || this.image?.height !== height) {
        this.image = context.createImageData(width, height);
      }
      this.painter.begin(this.image);
      const top = this.scroller.scrollTop;
      const high = Math.round(this.places.rowHeight * this.dpr);
      for (const { rows } of this.places.lanes) {
        for (const each of rows) {
          const y = Math.round((each.top - top) * this.dpr);
          this.painter.row(each.row, this.view, y, high, this.isShown, this.chosen);
        }
      }
      context.putImageData(this.image, 0, 0);
      iobench.drawOver(this, context, ticks(this.view, this.plotWidth, 110));
      this.machine?.draw();
      const { at } = describe;
      this.said.textContent = `${at(this.view.from)} to ${at(this.view.to)}`;
      this.frames += 1;
    }

    // The span under a point of the canvas, in CSS pixels; -1 where there is none.
    spanAt(x, y) {
      const inside = y + this.scroller.scrollTop;
      for (const { rows } of this.places.lanes) {
        for (const { row, top } of rows) {
          if (inside < top || inside > top + this.places.rowHeight) continue;
          const scale = this.view.width / this.plotWidth;
          const moment = this.view.from + x * scale;
          const exact = this.spans.at(row, moment, moment, this.isShown);
          const wide = exact >= 0 && this.spans.length[exact] > 3 * scale;
          return wide ? exact : this.spans.at(row, moment - 2 * scale, moment + 2 * scale, this.isShown);
        }
      }
      return -1;
    }

    showTip(span, x, y) {
      const title = this.spans.meta.titles[this.spans.stage[span]];
      this.tellTip(title, describe.facts(this.spans, span), x, y, this.scroller);
    }

    // Pairs of a name and a text, beside a point of an element's plot.
    tellTip(title, facts, x, y, { offsetLeft, offsetTop }) {
      const { tip } = this;
      tip.replaceChildren();
      make(tip, "b", "", title);
      const list = make(tip, "dl");
      for (const [name, text] of facts) {
        make(list, "dt", "", name);
        make(list, "dd", "", text);
      }
      tip.hidden = false;
      // Beside the pointer, inside the container.
      const most = this.container.clientWidth - tip.offsetWidth - 4;
      const left = offsetLeft + this.gutter + x + 14;
      tip.style.left = `${Math.max(4, left > most ? Math.min(left - tip.offsetWidth - 28, most) : left)}px`;
      tip.style.top = `${offsetTop + y + 16}px`;
    }

    hideTip() {
      this.tip.hidden = true;
    }
  }

  async function start(container) {
    const run = container.dataset.run;
    const meta = document.getElementById(`iobench-timeline-meta-${run}`);
    const data = document.getElementById(`iobench-timeline-data-${run}`);
    if (meta === null || data === null) return null;
    try {
      const facts = JSON.parse(meta.textContent);
      const columns = await iobench.decodeTimeline(facts, data.textContent);
      return new Timeline(container, new Spans(facts, columns));
    } catch (error) {
      container.replaceChildren();
      const said = make(container, "p", "tl-left-out", `The timeline cannot be shown: ${error.message}.`);
      said.setAttribute("role", "alert");
      return null;
    }
  }

  // By run: a promise of its timeline, null where it has none or cannot be shown.
  iobench.timelines = {};
  iobench.whenReady(() => {
    for (const container of document.querySelectorAll(".timeline[data-run]")) {
      iobench.timelines[container.dataset.run] = start(container);
    }
  });
})();
