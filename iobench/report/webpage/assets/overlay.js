"use strict";
// What lies over the bars: labels, lines of time, the batch looked at; and the whole run above.
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
    if (timeline.focus >= 0) connect(timeline, context, scale);
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
    const least = LABELLED / scale;
    for (const { rows } of places.lanes) {
      for (const { row, top } of rows) {
        const y = top - scroller.scrollTop;
        if (y + places.rowHeight < 0 || y > height) continue;
        for (let place = spans.firstAfter(row, view.from); place < row.length; place++) {
          const span = row[place];
          if (spans.start[span] >= view.to) break;
          if (spans.length[span] < least || !isShown[spans.stage[span]]) continue;
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

  // Widths are measured once for each text; texts that do not fit lose their end.
  const widths = new Map();
  function fitted(context, text, room) {
    let width = widths.get(text);
    if (width === undefined) {
      if (widths.size > 20000) widths.clear();
      width = context.measureText(text).width;
      widths.set(text, width);
    }
    if (width <= room) return text;
    const kept = Math.floor((text.length * room) / width) - 1;
    return kept > 1 ? `${text.slice(0, kept)}…` : "";
  }

  // Outline the batch looked at, and draw a line from its last work in each lane to the wait.
  function connect(timeline, context, scale) {
    const { spans, view, places, focus, scroller, colours, isShown } = timeline;
    const chosen = timeline.chosen ?? new Set([focus]);
    const tops = new Map();
    for (const { lane, rows } of places.lanes) for (const number of lane.numbers) tops.set(number, rows);
    const box = (span) => {
      const row = tops.get(spans.lane[span])?.[spans.depth[span]];
      if (!row || !isShown[spans.stage[span]]) return null;
      const x0 = (spans.start[span] - view.from) * scale;
      const x1 = (spans.end(span) - view.from) * scale;
      return { x0, x1: Math.max(x1, x0 + 1), y: row.top - scroller.scrollTop };
    };
    const wait = [...chosen].find((span) => spans.sortOf(span) === "wait");
    const last = new Map();
    context.strokeStyle = colours.text.accent;
    context.lineWidth = 1;
    for (const span of chosen) {
      const found = box(span);
      if (!found || found.x1 < 0 || found.x0 > timeline.plotWidth) continue;
      if (spans.sortOf(span) === "load") {
        const lane = spans.lane[span];
        if (!last.has(lane) || spans.end(last.get(lane)) < spans.end(span)) last.set(lane, span);
      }
      if (found.x1 - found.x0 < 3 && span !== focus) continue;
      context.lineWidth = span === focus ? 2.5 : 1;
      context.strokeRect(found.x0 + 0.5, found.y + 0.5, found.x1 - found.x0 - 1, places.rowHeight - 1);
    }
    const target = wait === undefined ? null : box(wait);
    if (!target) return;
    context.lineWidth = 1.5;
    for (const [lane, span] of last) {
      const source = box(span);
      if (lane === spans.lane[wait] || !source) continue;
      const y0 = source.y + places.rowHeight / 2;
      const y1 = target.y + places.rowHeight;
      const reach = Math.max(Math.abs(target.x1 - source.x1) / 2, 18);
      context.beginPath();
      context.moveTo(source.x1, y0);
      context.bezierCurveTo(source.x1 + reach, y0, target.x1, y1 + 30, target.x1, y1);
      context.stroke();
      context.beginPath();
      context.arc(source.x1, y0, 2.5, 0, 7);
      context.fillStyle = colours.text.accent;
      context.fill();
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

  // Waits over the whole run, the share of each column's time; the stretch in view is framed.
  function drawOverview(timeline) {
    const { overview, colours, view, dpr, plotWidth } = timeline;
    const context = overview.getContext("2d");
    if (timeline.overviewImage?.colours !== colours) {
      timeline.overviewImage = { colours, share: waitShares(timeline, overview.width) };
    }
    const { share } = timeline.overviewImage;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.globalAlpha = 1;
    context.fillStyle = colours.text.ground;
    context.fillRect(0, 0, overview.width, overview.height);
    context.fillStyle = colours.text.exposed;
    const high = overview.height - 4 * dpr;
    for (let x = 0; x < share.length; x++) {
      if (!share[x]) continue;
      const tall = Math.max(Math.min(share[x], 1) * high, 2 * dpr);
      context.fillRect(x, overview.height - 2 * dpr - tall, 1, tall);
    }
    context.setTransform(dpr, 0, 0, dpr, 0, 0);
    const x0 = (view.from / view.length) * plotWidth;
    const x1 = Math.max((view.to / view.length) * plotWidth, x0 + 3);
    context.fillStyle = colours.text.ink;
    context.globalAlpha = 0.12;
    context.fillRect(0, 0, x0, 44);
    context.fillRect(x1, 0, plotWidth - x1, 44);
    context.globalAlpha = 1;
    context.strokeStyle = colours.text.accent;
    context.lineWidth = 2;
    context.strokeRect(x0 + 1, 1, Math.max(x1 - x0 - 2, 1), 42);
  }

  function waitShares({ spans, view }, width) {
    const share = new Float64Array(width);
    const scale = width / view.length;
    const loops = new Set(spans.waits.map((span) => spans.lane[span])).size || 1;
    for (const span of spans.waits) {
      const x0 = spans.start[span] * scale;
      const x1 = Math.min(spans.end(span) * scale, width);
      for (let x = Math.floor(x0); x < x1; x++) {
        share[x] += (Math.min(x1, x + 1) - Math.max(x0, x)) / loops;
      }
    }
    return share;
  }

  Object.assign(iobench, { drawOver, drawOverview });
})();
