"use strict";
// Quantities as the rest of the report prints them: the same words as iobench/report/units.py, for
// what only the browser knows, such as the span under the pointer. A test holds the two together.
(() => {
  const iobench = (window.iobench ??= {});
  const DURATIONS = [["ns", 1], ["us", 1e3], ["ms", 1e6], ["s", 1e9]];
  const BYTES = [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12], ["PB", 1e15]];

  // As Python rounds: a tie goes to the even digit, toFixed() would take it up. Only multiples of
  // a power of two can be ties; these products are exact.
  function fixed(value, decimals) {
    const scaled = value * 10 ** decimals;
    const isTie = Number.isInteger(value * 2 ** (decimals + 1)) && Math.abs(scaled % 1) === 0.5;
    if (!isTie) return value.toFixed(decimals);
    return (2 * Math.round(scaled / 2) / 10 ** decimals).toFixed(decimals);
  }

  function grouped(text) {
    const [whole, rest] = text.split(".");
    const spaced = whole.replace(/\B(?=(\d{3})+$)/g, ",");
    return rest === undefined ? spaced : `${spaced}.${rest}`;
  }

  function threeDigits(value) {
    for (const [limit, decimals] of [[9.995, 2], [99.95, 1]]) {
      if (value < limit) return fixed(value, value >= 0.1 ? decimals : 3);
    }
    return grouped(fixed(value, 0));
  }

  function scaled(value, units, zero = "0") {
    if (value === 0) return zero;
    if (value < 0) return `-${scaled(-value, units, zero)}`;
    const [unit, size] = units.find((pair) => value < 999.5 * pair[1]) ?? units.at(-1);
    if (size === 1) return value >= 1 ? `${fixed(value, 0)} ${unit}` : `< 1 ${unit}`;
    return `${threeDigits(value / size)} ${unit}`;
  }

  const known = (print) => (value) => (value === null || value < 0 ? "unknown" : print(value));

  iobench.quantities = {
    duration: (ns) => (ns === null ? "unknown" : scaled(ns, DURATIONS)),
    nbytes: known((value) => scaled(value, BYTES)),
    byteRate: known((value) => `${scaled(value, BYTES, "0 B")}/s`),
    count: (value) => grouped(String(value)),
    fraction(value) {
      if (value === null) return "unknown";
      if (value > 0 && value < 0.001) return "< 0.1 %";
      if (value > 0.999 && value < 1) return "> 99.9 %";
      const percent = 100 * value;
      const oneDecimal = (percent > 0 && percent < 9.95) || (percent >= 99.5 && percent < 100);
      return `${fixed(percent, oneDecimal ? 1 : 0)} %`;
    },
  };
})();
