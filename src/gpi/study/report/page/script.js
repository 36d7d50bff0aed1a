"use strict";
(() => {
  const SIZE = 10000;
  const MANY = 6; // lines; with more, bands and seeds are fainter
  const root = document.documentElement;
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const byId = (id) => document.getElementById(id);
  root.classList.add("js");

  // --- light or dark: what the system says, until someone chooses ---

  function kept(value) {
    try {
      return value === undefined ? localStorage.getItem("gpi-theme") : localStorage.setItem("gpi-theme", value);
    } catch {
      return null; // storage may be closed to files
    }
  }

  if (["dark", "light"].includes(kept())) root.dataset.theme = kept();
  byId("Theme").addEventListener("click", () => {
    const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    kept(root.dataset.theme);
  });

  // --- filters, kept in the address behind the place: #figure-2?algorithm=ppo,geppo ---

  const ORDER = ["task", "algorithm", "kappa"]; // of the marks in data-f
  const WORDS = { task: "tasks", algorithm: "algorithms", kappa: "kappas" };
  const form = byId("Filters");
  const sets = all("fieldset[data-key]", form).map((set) => ({
    key: set.dataset.key,
    at: ORDER.indexOf(set.dataset.key),
    boxes: all("input", set),
    count: set.querySelector(".count"),
  }));
  const marked = all("[data-f]").map((element) => [element, element.dataset.f.split(" ")]);
  const checked = (set) => set.boxes.filter((box) => box.checked);
  const place = () => location.hash.slice(1).split("?")[0];

  function apply() {
    const shown = [null, null, null];
    for (const set of sets) shown[set.at] = new Set(checked(set).map((box) => box.dataset.place));
    for (const [element, about] of marked) {
      const off = about.some((value, at) => value !== "-" && shown[at] && !shown[at].has(value));
      element.classList.toggle("off", off);
    }
    for (const set of sets) set.count.textContent = `${checked(set).length} of ${set.boxes.length}`;
    byId("Shown").textContent = sets.map((set) => `${set.count.textContent} ${WORDS[set.key]}`).join(", ");
    for (const note of all(".counted")) count(note);
    for (const plot of all(".plot")) plot.classList.toggle("many", all(".line:not(.off)", plot).length > MANY);
    for (const name of ["seeds", "bands"]) {
      root.classList.toggle(`no-${name}`, !form.querySelector(`[data-show=${name}]`).checked);
    }
    hide();
  }

  function count(note) {
    const rows = note.dataset.what === "rows";
    const items = rows ? all("tbody tr", note.closest("figure")) : all(".small", note.closest(".multiples"));
    const some = items.filter((item) => !item.classList.contains("off")).length;
    const every = rows ? `${some} rows` : "";
    note.textContent = some === items.length ? every : `${some} of ${items.length} ${note.dataset.what}`;
  }

  function query() {
    return sets
      .filter((set) => checked(set).length < set.boxes.length)
      .map((set) => `${set.key}=${checked(set).map((box) => encodeURIComponent(box.value)).join(",")}`)
      .join("&");
  }

  function remember() {
    const text = query();
    history.replaceState(null, "", `#${place()}${text ? `?${text}` : ""}`);
  }

  function recall() {
    const text = location.hash.split("?").slice(1).join("?");
    if (!text) {
      if (query()) remember(); // a link within the page: the filters stay
      return;
    }
    const asked = {};
    for (const part of text.split("&")) {
      const [key, values = ""] = part.split("=");
      try {
        asked[key] = new Set(values.split(",").map(decodeURIComponent));
      } catch {
        // not an address that this page wrote
      }
    }
    for (const set of sets) {
      for (const box of set.boxes) box.checked = !asked[set.key] || asked[set.key].has(box.value);
    }
    apply();
    byId(place())?.scrollIntoView();
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => {
    apply();
    remember();
  });
  form.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const mine = button.closest(".option")?.querySelector("input");
    for (const box of all("input", button.closest("fieldset"))) {
      box.checked = mine ? box === mine : button.dataset.set === "all";
    }
    apply();
    remember();
  });
  addEventListener("hashchange", recall);

  // --- the mark under the pointer ---

  const tip = byId("Tip");
  let saidAt = 0;
  const dot = document.createElement("div");
  dot.className = "cursor";
  for (const title of all("svg title")) { // the browser's own bubbles would cover ours
    title.parentNode.dataset.said = title.textContent;
    title.remove();
  }
  const labelOf = (group) => group.dataset.said.slice(0, group.dataset.said.lastIndexOf(": "));
  const colourOf = (element) => getComputedStyle(element).getPropertyValue("--c");

  function number(value) {
    const size = Math.abs(value);
    const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
    const fixed = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    return value.toLocaleString("en", fixed).replace("-", "−");
  }

  function whole(value) {
    return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  }

  // A path is "M x y l dx dy dx dy …", again for each piece: return the pieces as lists of points.
  function points(path) {
    if (!path) return [];
    return path.getAttribute("d").split("M").slice(1).map((piece) => {
      const numbers = piece.match(/-?\d+/g).map(Number);
      const found = [[numbers[0], numbers[1]]];
      for (let i = 2; piece.includes("l") && i + 1 < numbers.length; i += 2) {
        const [x, y] = found[found.length - 1];
        found.push([x + numbers[i], y + numbers[i + 1]]);
      }
      return found;
    });
  }

  function lineOf(group, back) {
    const band = new Map();
    for (const piece of points(back.querySelector(".band"))) { // along the upper end, and back along the lower one
      for (let i = 0; i < piece.length / 2; i++) band.set(piece[i][0], [piece[piece.length - 1 - i][1], piece[i][1]]);
    }
    const mean = points(group.querySelector(".mean")).flat();
    return { group, back, mean, band, seeds: points(back.querySelector(".seeds")).flat(), label: labelOf(group) };
  }

  function read(plot) {
    if (plot.read) return plot.read;
    const [low, high] = plot.dataset.x.split(" ").map(Number);
    const [bottom, top] = plot.dataset.y.split(" ").map(Number);
    const backs = all("g.back", plot);
    plot.read = {
      lines: all(".line", plot).map((group, i) => lineOf(group, backs[i])),
      xOf: (x) => low + ((high - low) * x) / SIZE,
      yOf: (y) => top - ((top - bottom) * y) / SIZE,
    };
    return plot.read;
  }

  function hide() {
    tip.hidden = true;
    dot.remove();
    for (const element of all(".dim")) element.classList.remove("dim");
    for (const element of all(".on")) element.classList.remove("on");
  }

  function say(parts, x, y) {
    saidAt = scrollY; // a scroll that brought us here is told of later
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(6, Math.min(x + 16, innerWidth - box.width - 6))}px`;
    tip.style.top = `${y - box.height - 14 > 4 ? y - box.height - 14 : y + 20}px`;
  }

  function text(tag, words, colour) {
    const element = document.createElement(tag);
    if (colour) {
      const mark = document.createElement("i");
      mark.style.setProperty("--c", colour);
      element.append(mark);
    }
    element.append(words);
    return element;
  }

  function highlight(scope, lines) {
    scope.classList.add("dim");
    for (const line of lines) for (const group of [line.group, line.back]) group.classList.add("on");
    const legend = (scope.closest(".multiples") || scope.closest("figure")).querySelector(".legend");
    if (!legend) return;
    legend.classList.add("dim");
    for (const item of all("li", legend)) item.classList.toggle("on", item.dataset.label === lines[0]?.label);
  }

  function show(plot, line, at) {
    hide();
    plot.now = [line, at];
    const { xOf, yOf } = read(plot);
    const [x, y] = line.mean[at];
    const svg = plot.querySelector("svg").getBoundingClientRect();
    const box = plot.getBoundingClientRect();
    const left = svg.left + (svg.width * x) / SIZE;
    const top = svg.top + (svg.height * y) / SIZE;
    dot.style.cssText = `left:${left - box.left}px;top:${top - box.top}px;--c:${colourOf(line.group)}`;
    plot.append(dot);
    highlight(plot, [line]);
    const ends = line.band.get(x);
    const interval = ends ? ` [${number(yOf(ends[0]))}, ${number(yOf(ends[1]))}]` : "";
    const parts = [
      text("b", line.label, colourOf(line.group)),
      text("span", `${number(yOf(y))}${interval} at ${whole(xOf(x))}`),
    ];
    const seeds = line.seeds.filter(([a]) => a === x).map(([, b]) => number(yOf(b)));
    if (seeds.length && seeds.length <= 12) parts.push(text("span", `seeds ${seeds.join(", ")}`));
    say(parts, left, top);
  }

  function visible(plot) {
    return read(plot).lines.filter((line) => !line.group.classList.contains("off") && line.mean.length);
  }

  function nearest(plot, event) {
    const svg = plot.querySelector("svg").getBoundingClientRect();
    let best = null;
    for (const line of visible(plot)) {
      for (const [at, [x, y]] of line.mean.entries()) {
        const across = svg.left + (svg.width * x) / SIZE - event.clientX;
        const along = svg.top + (svg.height * y) / SIZE - event.clientY;
        const away = 4 * across ** 2 + along ** 2; // rather the same step than the same value
        if (!best || away < best.away) best = { away, line, at };
      }
    }
    if (best) show(plot, best.line, best.at);
  }

  const KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  function walk(plot, event) {
    const lines = visible(plot);
    const move = KEYS[event.key];
    if (event.key === "Escape") hide();
    if (!move || !lines.length) return;
    event.preventDefault();
    const [line, at] = plot.now && lines.includes(plot.now[0]) ? plot.now : [lines[0], 0];
    const next = lines[(lines.indexOf(line) + move[0] + lines.length) % lines.length];
    show(plot, next, Math.max(0, Math.min(at + move[1], next.mean.length - 1)));
  }

  function tell(row, event) {
    const marks = all(".mark:not(.off)", row).map((mark) => text("span", mark.dataset.said, colourOf(mark)));
    say([text("b", row.querySelector(".name").textContent), ...marks], event.clientX, event.clientY);
  }

  function point(element, act) {
    for (const kind of ["pointermove", "pointerdown"]) element.addEventListener(kind, (event) => act(element, event));
    element.addEventListener("pointerleave", (event) => { // a finger leaves at once, and its tip stays
      if (event.pointerType !== "touch") hide();
    });
  }

  addEventListener("pointerdown", hide, { capture: true }); // elsewhere; here it is shown again
  for (const row of all(".row:not(.axis)")) point(row, tell);
  for (const plot of all(".plot")) {
    point(plot, nearest);
    plot.addEventListener("blur", () => { if (dot.parentNode === plot) hide(); });
    plot.addEventListener("keydown", (event) => walk(plot, event));
  }
  for (const item of all(".legend.lines li")) {
    item.addEventListener("pointerenter", () => {
      const scope = item.closest(".multiples, figure");
      const lines = all(".plot", scope).flatMap((plot) => read(plot).lines);
      highlight(scope, lines.filter((line) => line.label === item.dataset.label));
    });
    item.addEventListener("pointerleave", hide);
  }
  addEventListener("scroll", () => { if (!tip.hidden && Math.abs(scrollY - saidAt) > 4) hide(); }, { passive: true });

  // --- a click on the head of a column sorts its table: up, down, as it was ---

  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

  function before(a, b, sign) {
    const [x, y] = [a, b].map((cell) => Number(cell.dataset.v ?? NaN));
    if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // nothing comes last
    return sign * a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  }

  for (const table of all("table")) {
    const [body] = table.tBodies;
    const first = [...body.rows];
    const heads = all("thead th", table);
    for (const [column, head] of heads.entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const way = NEXT[head.getAttribute("aria-sort") || "none"];
        for (const other of heads) other.removeAttribute("aria-sort");
        const sign = way === "ascending" ? 1 : -1;
        const rows = [...first];
        if (way !== "none") {
          head.setAttribute("aria-sort", way);
          rows.sort((a, b) => before(a.cells[column], b.cells[column], sign));
        }
        body.append(...rows);
      });
    }
  }

  // --- where in the contents we are ---

  const links = all(".contents li a");
  const list = document.querySelector(".contents > ol");
  const sections = all("main section");

  function locate() {
    const here = sections.filter((section) => section.getBoundingClientRect().top < innerHeight * 0.31).pop();
    for (const link of links) {
      const mine = here !== undefined && link.getAttribute("href") === `#${here.id}`;
      link.classList.toggle("here", mine);
      if (!link.closest("ol ol")) link.parentNode.classList.toggle("open", mine);
    }
    const current = links.find((link) => link.classList.contains("here"));
    if (current) list.scrollTop = current.offsetTop - list.offsetTop - list.clientHeight / 3;
  }

  const seen = new IntersectionObserver(locate, { rootMargin: "-30% 0px -69% 0px" });
  for (const section of sections) seen.observe(section);
  form.querySelector("details").open = !matchMedia("(max-width: 62rem)").matches;
  apply();
  recall();
})();
