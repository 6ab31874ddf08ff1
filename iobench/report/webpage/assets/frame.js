"use strict";
// What a timeline consists of: buttons, legend, canvases, and where words about it go.
(() => {
  const iobench = (window.iobench ??= {});

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
    timeline.canvas.setAttribute("aria-label", label(timeline));
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
      help.push("Below, the machine: a row's full height is all there is of it, or the most there was; "
        + "low rows are CPUs, strong where busy.");
    }
    for (const each of help) make(container, "p", "tl-help", each);
    const missing = spans.meta.missing;
    if (missing.length) {
      make(container, "p", "tl-left-out", `Without spans, and without a lane: ${missing.join(", ")}.`);
    }
  }

  function label(timeline) {
    const { count, duration } = iobench.quantities;
    const { spans } = timeline;
    const waits = spans.waits.length;
    return (
      `Timeline of ${count(spans.count)} spans in ${count(spans.lanes.length)} lanes over ` +
      `${duration(spans.meta.length_ns)}, with ${count(waits)} waits. ` +
      "Arrows move, plus and minus zoom, Enter goes to the next longest wait."
    );
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
      each.dataset.stage = spans.meta.stages[stage];
      make(each, "i", "swatch").dataset.kind = spans.meta.kinds[stage];
      make(each, "span", "", spans.meta.titles[stage]);
    }
    timeline.legend = parent;
  }

  iobench.frame = { build, button, make };
})();
