"use strict";
// What lies over the bars: labels, lines of time, the batch looked at.
(() => {
  const iobench = (window.iobench ??= {});
  const LABELLED = 58; // px that a bar needs for its text

  function drawOver(timeline, context, marks) {
    const { dpr, plotWidth, height, view, colours } = timeline;
    context.setTransform(dpr, 0, 0, dpr, 0, 0);
    const scale = plotWidth / view.width;
    context.strokeStyle = colours.text.line;
    context.globalAlpha = 0.6;
    context.lineWidth = 1;
    context.beginPath();
    for (const { at } of marks) {
      const x = Math.round((at - view.from) * scale) + 0.5;
      context.moveTo(x, 0);
      context.lineTo(x, height);
    }
    context.stroke();
    context.globalAlpha = 1;
    label(timeline, context, scale);
    if (timeline.focus >= 0) outline(timeline, context, scale);
    drawAxis(timeline, marks, scale);
  }

  function label(timeline, context, scale) {
    const { spans, view, places, plotWidth, colours, scroller, height, isShown, chosen } = timeline;
    context.font = "10.5px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.lineWidth = 2.5;
    context.strokeStyle = colours.text.ground;
    context.fillStyle = colours.text.ink;
    for (const { rows } of places.lanes) {
      for (const { row, top } of rows) {
        const y = top - scroller.scrollTop;
        if (y + places.rowHeight < 0 || y > height) continue;
        for (let place = spans.firstAfter(row, view.from); place < row.length; place++) {
          const span = row[place];
          if (spans.start[span] >= view.to) break;
          if (!isShown[spans.stage[span]]) continue;
          const x0 = Math.max((spans.start[span] - view.from) * scale, 0);
          const x1 = Math.min((spans.end(span) - view.from) * scale, plotWidth);
          if (x1 - x0 < LABELLED) continue;
          context.globalAlpha = chosen === null || chosen.has(span) ? 1 : 0.35;
          const text = fitted(context, labelOf(spans, span), x1 - x0 - 10);
          context.strokeText(text, x0 + 6, y + 10);
          context.fillText(text, x0 + 6, y + 10);
        }
      }
    }
    context.globalAlpha = 1;
  }

  function labelOf(spans, span) {
    const stage = spans.meta.titles[spans.stage[span]];
    const name = spans.names[spans.name[span]];
    if (spans.sortOf(span) === "wait") {
      return `${stage} ${iobench.quantities.duration(spans.length[span])}`;
    }
    return name ? `${stage} ${name.slice(name.lastIndexOf("/") + 1)}` : stage;
  }

  // Texts that do not fit lose their end.
  function fitted(context, text, space) {
    const width = context.measureText(text).width;
    if (width <= space) return text;
    const length = Math.floor((text.length * space) / width) - 1;
    return length > 1 ? `${text.slice(0, length)}…` : "";
  }

  // Outline the spans of the batch looked at.
  function outline(timeline, context, scale) {
    const { spans, view, places, focus, scroller, colours, isShown } = timeline;
    const rows = new Map();
    for (const { lane, rows: own } of places.lanes) for (const number of lane.numbers) rows.set(number, own);
    context.strokeStyle = colours.text.accent;
    for (const span of timeline.chosen ?? [focus]) {
      const row = rows.get(spans.lane[span])?.[spans.depth[span]];
      const x = (spans.start[span] - view.from) * scale;
      const width = Math.max(spans.length[span] * scale, 1);
      if (!row || !isShown[spans.stage[span]] || (width < 3 && span !== focus)) continue;
      context.lineWidth = span === focus ? 2.5 : 1;
      context.strokeRect(x + 0.5, row.top - scroller.scrollTop + 0.5, width - 1, places.rowHeight - 1);
    }
  }

  function drawAxis(timeline, marks, scale) {
    const { axis, dpr, plotWidth, view, colours } = timeline;
    const context = axis.getContext("2d");
    context.setTransform(dpr, 0, 0, dpr, 0, 0);
    context.clearRect(0, 0, plotWidth, 22);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colours.text.faint;
    context.strokeStyle = colours.text.line;
    context.beginPath();
    for (const { at, text } of marks) {
      const x = Math.round((at - view.from) * scale) + 0.5;
      context.moveTo(x, 15);
      context.lineTo(x, 22);
      const width = context.measureText(text).width;
      context.fillText(text, Math.min(Math.max(x - width / 2, 0), plotWidth - width), 11);
    }
    context.stroke();
  }

  iobench.drawOver = drawOver;
})();
