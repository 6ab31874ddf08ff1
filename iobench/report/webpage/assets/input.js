"use strict";
// Hands on the timeline: mouse, pen, fingers, keys.
(() => {
  const iobench = (window.iobench ??= {});
  const MOVED = 5; // px; less is a click or a tap

  iobench.whenReady = (act) => {
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", act);
    else act();
  };

  function listen(timeline) {
    onWheel(timeline);
    onPointers(timeline);
    onOverview(timeline);
    timeline.canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = keys(timeline, event)[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }

  // The wheel zooms only where the reader has turned to the timeline: else it scrolls the page.
  function onWheel(timeline) {
    const { canvas, view } = timeline;
    canvas.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      const isZoom = event.ctrlKey || event.metaKey || document.activeElement === canvas;
      const pixels = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
      if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
        event.preventDefault();
        timeline.change(() => view.pan((sideways * pixels) / timeline.plotWidth));
      } else if (isZoom) {
        event.preventDefault();
        const share = event.offsetX / timeline.plotWidth;
        timeline.change(() => view.zoom(Math.exp((event.deltaY * pixels) / 400), share));
      }
    }, { passive: false });
  }

  function onPointers(timeline) {
    const { canvas, view } = timeline;
    const down = new Map(); // pointers on the canvas: where each was last
    let moved = 0;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 0) return;
      if (!down.size) moved = 0;
      down.set(event.pointerId, place(event));
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event);
      const before = down.get(event.pointerId);
      if (!before) {
        hover(timeline, now);
        return;
      }
      moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      if (down.size === 2) pinch(timeline, down, event.pointerId, now);
      else if (moved > MOVED) {
        timeline.change(() => view.pan((before.x - now.x) / timeline.plotWidth));
        if (event.pointerType === "mouse") timeline.scroller.scrollTop += before.y - now.y;
      }
      down.set(event.pointerId, now);
    });
    const lift = (event) => {
      const was = down.delete(event.pointerId);
      if (was && !down.size && moved <= MOVED && event.type === "pointerup") {
        tap(timeline, place(event));
      }
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") timeline.hideTip();
    });
  }

  function hover(timeline, { x, y }) {
    const span = timeline.spanAt(x, y);
    timeline.canvas.classList.toggle("over", span >= 0);
    if (span < 0) timeline.hideTip();
    else timeline.showTip(span, x, y);
  }

  // A wait that is chosen shows the batch it waited for; any other span, the batch it is part of.
  function tap(timeline, { x, y }) {
    timeline.canvas.focus({ preventScroll: true });
    const span = timeline.spanAt(x, y);
    timeline.choose(span);
    if (span < 0) return;
    timeline.showTip(span, x, y);
    timeline.waitPlace = timeline.spans.longest.indexOf(span);
    timeline.say(span);
  }

  function pinch(timeline, down, moving, now) {
    const { view, plotWidth } = timeline;
    const [other] = [...down].filter(([id]) => id !== moving).map(([, at]) => at);
    const before = down.get(moving);
    const apart = Math.max(Math.abs(now.x - other.x), 8);
    const factor = Math.max(Math.abs(before.x - other.x), 8) / apart;
    timeline.change(() => view.zoom(factor, (now.x + other.x) / 2 / plotWidth));
  }

  function keys(timeline, event) {
    const { view, scroller } = timeline;
    const far = event.shiftKey ? 1 : 0.2;
    const pan = (share) => () => timeline.change(() => view.pan(share));
    const zoom = (factor) => () => timeline.change(() => view.zoom(factor));
    const whole = () => timeline.change(() => view.show(0, view.length));
    return {
      ArrowLeft: pan(-far), ArrowRight: pan(far),
      ArrowUp: () => (scroller.scrollTop -= 48), ArrowDown: () => (scroller.scrollTop += 48),
      PageUp: pan(-1), PageDown: pan(1),
      "+": zoom(0.5), "=": zoom(0.5), "-": zoom(2), _: zoom(2), 0: whole,
      Home: () => timeline.change(() => view.show(0, view.width)),
      End: () => timeline.change(() => view.show(view.length - view.width, view.length)),
      Enter: () => timeline.stepWait(event.shiftKey ? -1 : 1),
      n: () => step(timeline, 1), p: () => step(timeline, -1),
      Escape: () => timeline.choose(-1),
    };
  }

  // To the next span of the lane: the first in view if none is looked at.
  function step(timeline, direction) {
    const { spans, view, focus } = timeline;
    const lane = timeline.places.lanes[0];
    if (!lane) return;
    const next = focus < 0
      ? lane.rows[0].row[spans.firstAfter(lane.rows[0].row, view.from)] ?? -1
      : spans.neighbour(focus, direction);
    if (next < 0) return;
    const isSeen = spans.start[next] >= view.from && spans.start[next] < view.to;
    if (!isSeen) {
      const middle = spans.start[next] + spans.length[next] / 2;
      view.show(middle - view.width / 2, middle + view.width / 2);
    }
    timeline.choose(next);
    timeline.reveal(next);
    timeline.say(next);
  }

  // The overview: click or drag to go there.
  function onOverview(timeline) {
    const { overview, view } = timeline;
    const go = (event) => {
      const share = event.offsetX / timeline.plotWidth;
      const from = share * view.length - view.width / 2;
      timeline.change(() => view.show(from, from + view.width));
    };
    overview.addEventListener("pointerdown", (event) => {
      overview.setPointerCapture(event.pointerId);
      // Of the whole run there is nowhere to go: a click there means "closer, here".
      if (view.width > view.length * 0.9) view.zoom(0.1, event.offsetX / timeline.plotWidth);
      go(event);
    });
    overview.addEventListener("pointermove", (event) => {
      if (overview.hasPointerCapture(event.pointerId)) go(event);
    });
  }

  iobench.listen = listen;
})();
