"use strict";
// The charts of waits: both take `waits_ns` of a run from the report's document.
(() => {
  const iobench = (window.iobench ??= {});
  const { WaitChart, WaitDistribution } = iobench;

  function waitsOf(report, container) {
    const run = report.runs[Number(container.dataset.run)];
    return run?.waits_ns?.length ? run : null;
  }

  iobench.charts = {};
  iobench.whenReady(() => {
    const element = document.getElementById("iobench-report");
    if (element === null) return;
    const report = JSON.parse(element.textContent);
    for (const [name, Kind] of [["wait-chart", WaitChart], ["wait-distribution", WaitDistribution]]) {
      for (const container of document.querySelectorAll(`.${name}[data-run]`)) {
        const run = waitsOf(report, container);
        const number = container.dataset.run;
        if (run === null) container.textContent = "The wait of each batch is not known.";
        else {
          const made = Kind === WaitChart ? new Kind(container, number, run) : new Kind(container, run);
          (iobench.charts[number] ??= {})[name] = made;
        }
      }
    }
  });
})();
