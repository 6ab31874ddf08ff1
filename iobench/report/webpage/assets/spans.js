"use strict";
// Spans, from the text that the page holds (the other side of page_payload.py): by lane and depth in
// order of time, by batch, and the waits by their length.
(() => {
  const iobench = (window.iobench ??= {});

  async function inflated(text) {
    if (typeof DecompressionStream !== "function") {
      throw new Error("this browser cannot unpack the timeline: it lacks DecompressionStream");
    }
    const packed = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
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

  class Spans {
    constructor(meta, columns) {
      this.meta = meta;
      this.count = meta.n_shown;
      Object.assign(this, columns);
      this.depth = Uint8Array.from(columns.depth);
      this.stage = Uint16Array.from(columns.stage);
      this.sorts = meta.sorts;
      this.lanes = meta.lanes.map((lane, number) => ({ ...lane, number, rows: [] }));
      this._sortIntoRows();
      this.shared = this._shareLanes();
      this._findWaits();
      this._batches = null;
    }

    end(span) {
      return this.start[span] + this.length[span];
    }

    sortOf(span) {
      return this.sorts[this.stage[span]];
    }

    // Spans of one lane and depth never overlap, so a row of them is in order by start and by end.
    _sortIntoRows() {
      const result = this.lanes.map(() => []);
      for (let span = 0; span < this.count; span++) {
        (result[this.lane[span]][this.depth[span]] ??= []).push(span);
      }
      this.lanes.forEach((lane) => {
        const rows = result[lane.number];
        for (let depth = 0; depth < rows.length; depth++) {
          lane.rows.push(Int32Array.from(rows[depth] ?? []));
        }
        if (!lane.rows.length) lane.rows.push(new Int32Array(0));
      });
    }

    // Lanes as they are shown: processes of one name that lived one after the other, as a loader's
    // workers epoch by epoch, share one. Each has its numbers among `lanes`, and joined rows.
    _shareLanes() {
      const result = [];
      for (const lane of this.lanes) {
        const name = lane.name.replace(` (${lane.pid})`, "");
        const from = Math.min(...lane.rows.map((row) => (row.length ? this.start[row[0]] : Infinity)));
        const to = Math.max(...lane.rows.map((row) => (row.length ? this.end(row.at(-1)) : 0)));
        const open = result.find((each) => each.name === name && each.to <= from);
        if (!open) {
          result.push({ ...lane, name, to, numbers: [lane.number], parts: [lane] });
          continue;
        }
        open.to = to;
        open.is_closed = open.is_closed && lane.is_closed;
        open.numbers.push(lane.number);
        open.parts.push(lane);
      }
      for (const lane of result) {
        if (lane.parts.length === 1) lane.name = lane.parts[0].name;
        const deepest = Math.max(...lane.parts.map((part) => part.rows.length));
        lane.rows = Array.from({ length: deepest }, (_, depth) =>
          Int32Array.from(lane.parts.flatMap((part) => [...(part.rows[depth] ?? [])]))
        );
      }
      return result;
    }

    // Waits of training loops: `waits` in order of time, `longest` by length.
    _findWaits() {
      const waits = [];
      for (let span = 0; span < this.count; span++) {
        if (this.sortOf(span) === "wait") waits.push(span);
      }
      waits.sort((a, b) => this.start[a] - this.start[b]);
      this.waits = waits;
      this.longest = [...waits].sort((a, b) => this.length[b] - this.length[a] || a - b);
    }

    // All spans of a span's batch, in all lanes; of one without a batch, itself.
    ofBatch(span) {
      if (this.batch[span] < 0) return [span];
      if (this._batches === null) {
        this._batches = new Map();
        for (let each = 0; each < this.count; each++) {
          const known = this._batches.get(this.batch[each]);
          if (known) known.push(each);
          else this._batches.set(this.batch[each], [each]);
        }
      }
      return this._batches.get(this.batch[span]);
    }

    // The place in a row of its first span that ends after a moment.
    firstAfter(row, moment) {
      let low = 0;
      let high = row.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.end(row[middle]) > moment) high = middle;
        else low = middle + 1;
      }
      return low;
    }

    // What the pointer means: of the spans of a row that touch [from, to], the one most waited
    // for, of equals the longest. -1 where there is none.
    at(row, from, to, isShown) {
      let best = -1;
      for (let place = Math.max(this.firstAfter(row, from) - 1, 0); place < row.length; place++) {
        const span = row[place];
        if (this.start[span] > to) break;
        if (this.end(span) < from || !isShown[this.stage[span]]) continue;
        const more = best < 0 ? 1 : this.exposed[span] - this.exposed[best];
        if (more > 0 || (more === 0 && this.length[span] > this.length[best])) best = span;
      }
      return best;
    }
  }

  iobench.Spans = Spans;
})();
