"use strict";
// From the text that the page holds to columns of numbers: the other side of page_payload.py.
(() => {
  const iobench = (window.iobench ??= {});

  async function inflated(text) {
    if (typeof DecompressionStream !== "function") {
      throw new Error("this browser cannot unpack the timeline: it lacks DecompressionStream");
    }
    const packed = Uint8Array.from(atob(text.trim()), (sign) => sign.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Sums and not shifts: times need more than the 32 bits that shifts have.
  function numbers(bytes, offset, count, nPlanes) {
    const values = new Float64Array(count);
    for (let plane = 0, weight = 1; plane < nPlanes; plane++, weight *= 256) {
      const place = offset + plane * count;
      for (let row = 0; row < count; row++) values[row] += bytes[place + row] * weight;
    }
    for (let row = 0, last = 0; row < count; row++) {
      const coded = values[row];
      last += coded % 2 ? -(coded + 1) / 2 : coded / 2;
      values[row] = last;
    }
    return values;
  }

  function lanesOf(meta) {
    const lane = new Int32Array(meta.n_shown);
    let row = 0;
    meta.lanes.forEach((each, number) => {
      lane.fill(number, row, row + each.n_spans);
      row += each.n_spans;
    });
    return lane;
  }

  // Resolves to {names, lane, depth, stage, start, length, exposed, ...}, a number for each span;
  // names are those of files, `name` is an index into them.
  iobench.decodeTimeline = async (meta, text) => {
    if (meta.version !== 3) throw new Error(`the timeline has format ${meta.version}, not 3`);
    const bytes = await inflated(text);
    const names = JSON.parse(new TextDecoder().decode(bytes.subarray(0, meta.names_nbytes)));
    const columns = { names, lane: lanesOf(meta) };
    let offset = meta.names_nbytes;
    for (const [name, nPlanes] of meta.columns) {
      columns[name] = numbers(bytes, offset, meta.n_shown, nPlanes);
      offset += nPlanes * meta.n_shown;
    }
    if (offset !== bytes.length) throw new Error("the timeline is damaged; write the page again");
    return columns;
  };
})();
