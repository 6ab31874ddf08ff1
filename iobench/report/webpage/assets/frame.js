"use strict";
// What a timeline consists of (buttons, legend, canvases, words), and hands on it: mouse, pen, keys.
(() => {
  const iobench = (window.iobench ??= {});
  const MOVED = 5; // px; less is a click or a tap

  iobench.whenReady = (act) => {
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", act);
    else act();
  };

  // Calls when the page turns dark or light.
  iobench.onTheme = (act) => {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", act);
    new MutationObserver(act).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  };

  function make(parent, tag, name, text) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    parent?.append(element);
    return element;
  }

  function button(parent, text, label, act) {
    const element = make(parent, "button", "", text);
    element.type = "button";
    if (label) element.setAttribute("aria-label", label);
    element.addEventListener("click", act);
    return element;
  }

  function build(timeline) {
    const { container, spans } = timeline;
    container.replaceChildren();
    const tools = make(container, "div", "tl-tools");
    tools.setAttribute("role", "toolbar");
    tools.setAttribute("aria-label", "Timeline");
    button(tools, "−", "Zoom out", () => timeline.change(() => timeline.view.zoom(2)));
    button(tools, "+", "Zoom in", () => timeline.change(() => timeline.view.zoom(0.5)));
    button(tools, "Whole run", "", () => timeline.change(() => timeline.view.show(0, timeline.view.length)));
    if (spans.longest.length) {
      button(tools, "Next longest wait", "", () => timeline.stepWait(1));
      button(tools, "Back", "The wait before, which is longer", () => timeline.stepWait(-1));
    }
    timeline.said = make(tools, "span", "tl-range");
    legend(timeline, make(container, "div", "tl-legend"));
    timeline.axis = make(container, "canvas", "tl-axis");
    timeline.axis.setAttribute("aria-hidden", "true");
    timeline.scroller = make(container, "div", "tl-lanes");
    timeline.scroller.tabIndex = -1;
    timeline.space = make(timeline.scroller, "div", "tl-space");
    timeline.canvas = make(timeline.space, "canvas", "tl-canvas");
    timeline.canvas.tabIndex = 0;
    timeline.canvas.setAttribute("role", "application");
    timeline.canvas.setAttribute("aria-roledescription", "timeline");
    const { count } = iobench.quantities;
    timeline.canvas.setAttribute("aria-label", `Timeline of ${count(spans.count)} spans with ` +
      `${count(spans.waits.length)} waits. Arrows move, plus and minus zoom, Enter goes to the next longest wait.`);
    timeline.names = make(timeline.space, "div", "tl-names");
    if (spans.meta.machine.length) {
      const canvas = make(container, "canvas", "tl-machine");
      canvas.setAttribute("role", "img");
      const names = spans.meta.machine.flatMap(({ lanes }) => lanes.map((lane) => lane.name));
      canvas.setAttribute("aria-label", `The machine meanwhile: ${names.join(", ")}.`);
      timeline.machine = new iobench.Machine(timeline, canvas);
    }
    timeline.tip = make(container, "div", "tl-tip");
    timeline.tip.hidden = true;
    timeline.live = make(container, "p", "tl-live");
    timeline.live.setAttribute("aria-live", "polite");
    const help = [
      "Hatched: the training loop waits. Filled from below: the part of the work that it waited for. "
        + "Pale: hidden work, which cost nothing.",
      "Click the lanes, then turn the wheel to zoom (or Ctrl and wheel), drag to move. Keys: arrows, "
        + "+ and −, 0 for the whole run, Enter for the next longest wait, Escape.",
    ];
    if (timeline.machine) {
      help.push("Below, the machine: a row's full height is all there is of it, or the most there was.");
    }
    for (const each of help) make(container, "p", "tl-help", each);
    const missing = spans.meta.missing.join(", ");
    if (missing) make(container, "p", "tl-left-out", `Without spans, and without a lane: ${missing}.`);
  }

  function legend(timeline, parent) {
    parent.setAttribute("role", "group");
    parent.setAttribute("aria-label", "Stages to show");
    const { spans, isShown } = timeline;
    for (const stage of spans.meta.stages.keys()) {
      const each = button(parent, "", "", () => {
        isShown[stage] = !isShown[stage];
        each.setAttribute("aria-pressed", String(isShown[stage]));
        timeline.redraw();
      });
      each.setAttribute("aria-pressed", "true");
      make(each, "i", `swatch kind-${spans.meta.kinds[stage]}`);
      make(each, "span", "", spans.meta.titles[stage]);
    }
  }

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

  iobench.frame = { build, button, listen, make };
})();
