"use strict";
// From the text that the page holds to columns of numbers: the other side of page_payload.py.
(() => {
  const iobench = (window.iobench ??= {});

  async function inflated(text) {
    if (typeof DecompressionStream !== "function") {
      throw new Error(
        "this browser cannot unpack the timeline (it lacks DecompressionStream, which Chrome and " +
          "Edge have since 80, Safari since 16.4 and Firefox since 113); the tables need no unpacking"
      );
    }
    const packed = Uint8Array.from(atob(text.trim()), (sign) => sign.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Sums and not shifts: times need more than the 32 bits that shifts have.
  function numbers(bytes, column, count, signed) {
    const values = new Float64Array(count);
    let place = column.offset;
    for (let row = 0; row < count; row++) {
      let value = 0;
      let weight = 1;
      let byte;
      do {
        byte = bytes[place++];
        value += (byte & 127) * weight;
        weight *= 128;
      } while (byte > 127);
      values[row] = !signed ? value : value % 2 ? -(value + 1) / 2 : value / 2;
    }
    if (place !== column.offset + column.nbytes) {
      throw new Error(`the timeline's column ${column.name} is damaged; write the page again`);
    }
    return values;
  }

  function undoRow(values) {
    for (let row = 1; row < values.length; row++) values[row] += values[row - 1];
  }

  function undoGroup(values, group) {
    const last = new Map();
    for (let row = 0; row < values.length; row++) {
      values[row] += last.get(group[row]) ?? 0;
      last.set(group[row], values[row]);
    }
  }

  function undoStarts(values, lane, depth, length) {
    for (let row = 1; row < values.length; row++) {
      if (lane[row] !== lane[row - 1]) continue;
      values[row] += values[row - 1] + (depth[row] > depth[row - 1] ? 0 : length[row - 1]);
    }
  }

  function undoExposed(values, length) {
    for (let row = 0; row < values.length; row++) {
      const coded = values[row];
      values[row] = coded > 2 ? coded - 3 : coded === 2 ? length[row] : coded === 1 ? -1 : 0;
    }
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
    if (meta.version !== 1) throw new Error(`the timeline has format ${meta.version}, not 1`);
    const bytes = await inflated(text);
    const columns = { lane: lanesOf(meta) };
    for (const column of meta.columns) {
      const { name, prediction, offset, nbytes } = column;
      if (prediction === "json") {
        const text = new TextDecoder().decode(bytes.subarray(offset, offset + nbytes));
        columns[name] = JSON.parse(text);
        continue;
      }
      const signed = prediction !== "none" && prediction !== "exposed";
      const values = numbers(bytes, column, meta.n_shown, signed);
      if (prediction === "row") undoRow(values);
      if (prediction === "stage" || prediction === "sample") undoGroup(values, columns[prediction]);
      columns[name] = values;
    }
    undoStarts(columns.start, columns.lane, columns.depth, columns.length);
    undoExposed(columns.exposed, columns.length);
    return columns;
  };
})();
