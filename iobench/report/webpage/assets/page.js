"use strict";
// The page around the drawings: theme, tabs, copying, printing.
(() => {
  const root = document.documentElement;
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  function startTheme() {
    const button = document.getElementById("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    let chosen = "";
    const show = () => {
      const dark = chosen ? chosen === "dark" : system.matches;
      root.dataset.theme = dark ? "dark" : "light";
      button.setAttribute("aria-pressed", String(dark));
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      chosen = root.dataset.theme === "dark" ? "light" : "dark";
      show();
    });
    system.addEventListener("change", show);
    addEventListener("beforeprint", () => { root.dataset.theme = "light"; });
    addEventListener("afterprint", show);
    show();
  }

  function startTabs() {
    const list = document.querySelector('[role="tablist"]');
    if (!list) return;
    const tabs = all('[role="tab"]', list);
    const panel = (tab) => document.getElementById(tab.getAttribute("aria-controls"));
    const select = (chosen) => {
      for (const tab of tabs) {
        const is = tab === chosen;
        tab.setAttribute("aria-selected", String(is));
        tab.tabIndex = is ? 0 : -1;
        panel(tab).hidden = !is;
      }
    };
    list.addEventListener("click", (event) => {
      const tab = event.target.closest('[role="tab"]');
      if (tab) select(tab);
    });
    list.addEventListener("keydown", (event) => {
      const at = tabs.indexOf(document.activeElement);
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (at < 0 || to === undefined) return;
      const tab = tabs[(to + tabs.length) % tabs.length];
      event.preventDefault();
      tab.focus();
      select(tab);
    });
    const named = () => {
      const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
      const of = target && tabs.find((tab) => panel(tab).contains(target));
      if (of) {
        select(of);
        target.scrollIntoView();
      }
    };
    list.hidden = false;
    select(tabs[0]);
    addEventListener("hashchange", named);
    named();
  }

  function startCopying() {
    for (const button of all(".copy")) {
      const text = button.parentElement.querySelector("pre");
      button.hidden = false;
      button.addEventListener("click", async () => {
        try {
          await navigator.clipboard.writeText(text.textContent);
          button.textContent = "Copied";
        } catch {
          // Not allowed to: leave it selected, to be copied by hand.
          getSelection().selectAllChildren(text);
          button.textContent = "Selected";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
    }
  }

  startTheme();
  startTabs();
  startCopying();
})();
