"use strict";
// Hands on the timeline: mouse, pen, fingers, keys.
(() => {
  const iobench = (window.iobench ??= {});
  const MOVED = 5; // px; less is a click or a tap

  function listen(timeline) {
    onWheel(timeline);
    onPointers(timeline);
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
      const pixels = event.deltaMode === 1 ? 16 : 1;
      const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!isSideways && !event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      const share = event.offsetX / timeline.plotWidth;
      timeline.change(() => {
        if (isSideways) view.pan((event.deltaX * pixels) / timeline.plotWidth);
        else view.zoom(Math.exp((event.deltaY * pixels) / 400), share);
      });
    }, { passive: false });
  }

  function onPointers(timeline) {
    const { canvas, view } = timeline;
    let last = null; // where the pointer that is down was last
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button > 0 || !event.isPrimary) return;
      moved = 0;
      last = { x: event.clientX, y: event.clientY };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!event.isPrimary) return;
      if (last === null) {
        hover(timeline, { x: event.offsetX, y: event.offsetY });
        return;
      }
      const [right, down] = [event.clientX - last.x, event.clientY - last.y];
      moved += Math.abs(right) + Math.abs(down);
      if (moved <= MOVED) return;
      timeline.change(() => view.pan(-right / timeline.plotWidth));
      if (event.pointerType === "mouse") timeline.scroller.scrollTop -= down;
      last = { x: event.clientX, y: event.clientY };
    });
    canvas.addEventListener("pointerup", (event) => {
      if (last !== null && moved <= MOVED) tap(timeline, { x: event.offsetX, y: event.offsetY });
      last = null;
    });
    canvas.addEventListener("pointercancel", () => (last = null));
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

  function keys(timeline, event) {
    const { view, scroller } = timeline;
    const far = event.shiftKey ? 1 : 0.2;
    const pan = (share) => () => timeline.change(() => view.pan(share));
    const zoom = (factor) => () => timeline.change(() => view.zoom(factor));
    const whole = () => timeline.change(() => view.show(0, view.length));
    return {
      ArrowLeft: pan(-far), ArrowRight: pan(far),
      ArrowUp: () => (scroller.scrollTop -= 48), ArrowDown: () => (scroller.scrollTop += 48),
      "+": zoom(0.5), "=": zoom(0.5), "-": zoom(2), _: zoom(2), 0: whole,
      Enter: () => timeline.stepWait(event.shiftKey ? -1 : 1),
      Escape: () => timeline.choose(-1),
    };
  }

  iobench.listen = listen;
})();
