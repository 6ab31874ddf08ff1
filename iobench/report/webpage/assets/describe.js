"use strict";
// What is said of a span: in its tooltip, and to those who hear the page.
(() => {
  const iobench = (window.iobench ??= {});
  const { duration, nbytes, byteRate, fraction, count } = iobench.quantities;
  const SUMMED = 1;
  const ESTIMATED = 16;

  // Pairs of a name and a text; what is not known of a span is left out, but for exposed time.
  function facts(spans, span) {
    const sort = spans.sortOf(span);
    const length = spans.length[span];
    const exposed = spans.exposed[span];
    const name = spans.names[spans.name[span]];
    const result = [];
    if (name) result.push([sort === "wait" ? "Made by" : "File", name]);
    const bytes = spans.nbytes[span];
    const rate = bytes > 0 && length > 0 && sort === "load" ? ` at ${byteRate(bytes / (length / 1e9))}` : "";
    if (bytes >= 0) result.push(["Bytes", nbytes(bytes) + rate]);
    result.push(["Took", duration(length)]);
    if (sort === "wait") result.push(["Exposed", "all of it: the training loop waits"]);
    else if (sort === "load" || sort === "hand-over") result.push(...parts(length, exposed));
    if (spans.batch[span] >= 0) result.push(["Batch", count(spans.batch[span])]);
    if (sort !== "wait" && spans.sample[span] >= 0 && spans.pieces[span] <= 1) {
      result.push(["Sample", count(spans.sample[span])]);
    }
    if (spans.epoch[span] >= 0) result.push(["Epoch", count(spans.epoch[span])]);
    if (spans.marks[span] & SUMMED) {
      result.push(["Sum", `over ${count(spans.pieces[span])} samples; its place in the batch is not`
        + ` where each was${spans.marks[span] & ESTIMATED ? ", its length an estimate" : ""}`]);
    }
    result.push(["Lane", spans.lanes[spans.lane[span]].name]);
    result.push(["Start", at(spans.start[span])]);
    return result;
  }

  function parts(length, exposed) {
    if (exposed < 0) return [["Exposed", "unknown"]];
    const share = length > 0 ? ` (${fraction(exposed / length)})` : "";
    return [["Exposed", duration(exposed) + share], ["Hidden", duration(Math.max(length - exposed, 0))]];
  }

  // A moment to the microsecond: "1.234567 s".
  function at(moment) {
    return `${(moment / 1e9).toFixed(6)} s`;
  }

  // What the batch of a wait spent where, the most exposed first.
  function batchSentence(spans, span) {
    const sums = new Map();
    for (const each of spans.ofBatch(span)) {
      if (spans.sortOf(each) !== "load" || spans.exposed[each] <= 0) continue;
      const stage = spans.meta.titles[spans.stage[each]];
      sums.set(stage, (sums.get(stage) ?? 0) + spans.exposed[each]);
    }
    const top = [...sums].sort((a, b) => b[1] - a[1]).slice(0, 3);
    if (!top.length) return "";
    return ` Of its batch's work it waited for ${top
      .map(([stage, total]) => `${stage} ${duration(total)}`).join(", ")}.`;
  }

  function waitSentence(spans, span, place) {
    const maker = spans.names[spans.name[span]];
    const batch = spans.batch[span] >= 0 ? `, batch ${count(spans.batch[span])}` : "";
    return (
      `Wait ${count(place + 1)} of ${count(spans.longest.length)} by length: ` +
      `${duration(spans.length[span])} at ${at(spans.start[span])}${batch}` +
      `${maker ? `, made by ${maker}` : ""}.${batchSentence(spans, span)}`
    );
  }

  iobench.describe = { facts, at, waitSentence };
})();
