"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { points, texts, names, labels, neighbours, cosines } = data;
  const element = (id) => document.getElementById(id);
  const canvas = element("map"), pen = canvas.getContext("2d"), tip = element("tip"), search = element("search");
  const folded = texts.map((text) => text.normalize("NFC").toLowerCase());

  // The view: the middle in units of the data, and how much larger than the whole map.
  const low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (const point of points) for (const axis of [0, 1]) {
    low[axis] = Math.min(low[axis], point[axis]);
    high[axis] = Math.max(high[axis], point[axis]);
  }
  const middle = [0, 1].map((axis) => (low[axis] + high[axis]) / 2);
  const view = { x: middle[0], y: middle[1], zoom: 1 };
  const hiddenLabels = new Set();
  let width = 0, height = 0, hovered = -1, kept = -1, matches = null, colours = {};

  const unit = () => view.zoom * 0.94 * Math.min(
    width / Math.max(high[0] - low[0], 1e-9), height / Math.max(high[1] - low[1], 1e-9));
  const onScreen = (number) => {
    const scale = unit(), [x, y] = points[number];
    return [width / 2 + (x - view.x) * scale, height / 2 - (y - view.y) * scale];
  };
  const isShown = (number) => !names.length || !hiddenLabels.has(labels[number]);

  // --- drawing ---
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    colours = { points: names.length ? names.map((_, n) => read(`--c${n}`)) : [read("--c0")], ring: read("--ring"), line: read("--muted") };
  };
  const dot = (number, radius, opacity) => {
    const [x, y] = onScreen(number);
    pen.globalAlpha = opacity;
    pen.fillStyle = colours.points[names.length ? labels[number] : 0];
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fill();
  };
  const ring = (number, radius, thickness) => {
    const [x, y] = onScreen(number);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.ring;
    pen.lineWidth = thickness;
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.stroke();
  };
  let waiting = false;
  const draw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      pen.clearRect(0, 0, width, height);
      const size = Math.min(5, Math.max(2.2, 60 / Math.sqrt(points.length)) * Math.sqrt(Math.sqrt(view.zoom)));
      for (let n = 0; n < points.length; n++) if (isShown(n)) dot(n, size, matches && !matches.has(n) ? 0.12 : 0.75);
      if (matches && matches.size < points.length) for (const n of matches) if (isShown(n)) {
        dot(n, size + 1, 1);
        ring(n, size + 1.5, 1);
      }
      if (kept >= 0) {
        const from = onScreen(kept);
        pen.strokeStyle = colours.line;
        pen.lineWidth = 1;
        for (const n of neighbours[kept] || []) {
          pen.globalAlpha = 0.8;
          pen.beginPath();
          pen.moveTo(...from);
          pen.lineTo(...onScreen(n));
          pen.stroke();
        }
        for (const n of neighbours[kept] || []) dot(n, size + 1.5, 1);
        dot(kept, size + 3, 1);
        ring(kept, size + 4, 2.5);
      }
      if (hovered >= 0) ring(hovered, size + 3, 2);
      pen.globalAlpha = 1;
    });
  };
  const measure = () => {
    const sharpness = window.devicePixelRatio || 1;
    [width, height] = [canvas.clientWidth, canvas.clientHeight];
    [canvas.width, canvas.height] = [width * sharpness, height * sharpness];
    pen.setTransform(sharpness, 0, 0, sharpness, 0, 0);
    draw();
  };

  // --- choosing ---
  const nearest = (x, y, within) => {
    let best = -1, least = within * within;
    for (let n = 0; n < points.length; n++) {
      if (!isShown(n)) continue;
      const [px, py] = onScreen(n), distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least) [best, least] = [n, distance];
    }
    return best;
  };
  const hover = (number) => {
    hovered = number;
    tip.hidden = number < 0;
    if (number >= 0) {
      const [x, y] = onScreen(number), top = canvas.offsetTop;
      tip.textContent = texts[number];
      const left = canvas.offsetLeft + Math.min(Math.max(x + 12, 0), width - tip.offsetWidth);
      tip.style.left = `${Math.max(canvas.offsetLeft, left)}px`;
      tip.style.top = `${top + (y + 18 + tip.offsetHeight > height ? y - tip.offsetHeight - 12 : y + 14)}px`;
    }
    draw();
  };
  const make = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const listed = (numbers, values) => make("ol", { className: "texts" }, ...numbers.map((number, place) => {
    const button = make("button", { type: "button" }, make("span", { textContent: texts[number] }));
    if (values) {
      const bar = make("span", { className: "bar" });
      bar.style.width = `${100 * Math.max(0, values[place])}%`;
      button.append(make("span", { className: "value", textContent: values[place].toFixed(3) }), bar);
    }
    button.addEventListener("click", () => keep(number));
    return make("li", {}, button);
  }));
  const keep = (number) => {
    kept = number;
    history.replaceState(null, "", number < 0 ? location.pathname : `#${number}`);
    const side = element("kept");
    if (number < 0) side.replaceChildren(make("p", { className: "muted", textContent: "Nothing is chosen." }));
    else {
      side.replaceChildren(make("p", { className: "chosen", textContent: texts[number] }));
      if (names.length) {
        const mark = make("span", { className: "dot" });
        mark.style.background = `var(--c${labels[number]})`;
        side.append(make("p", { className: "muted" }, mark, names[labels[number]]));
      }
      const near = neighbours[number] || [];
      if (near.length) side.append(make("h2", { textContent: "Nearest by cosine" }), listed(near, cosines[number]));
      element("said").textContent = `Kept: ${texts[number]}. ${near.length} neighbours are listed.`;
    }
    draw();
  };
  const look = () => {
    const words = search.value.normalize("NFC").toLowerCase().trim();
    matches = words ? new Set(folded.flatMap((text, number) => (text.includes(words) ? [number] : []))) : null;
    element("matches").textContent = matches ? `${matches.size.toLocaleString("en")} found` : "";
    const first = matches ? [...matches].slice(0, 20) : [];
    element("found").replaceChildren(...(first.length ? [
      make("h2", { textContent: matches.size > 20 ? "Found, the first 20" : "Found" }), listed(first)] : []));
    draw();
  };

  // --- moving ---
  const zoomBy = (factor, x = width / 2, y = height / 2) => {
    const before = unit();
    view.zoom = Math.min(60, Math.max(1, view.zoom * factor));
    const after = unit();
    view.x += (x - width / 2) * (1 / before - 1 / after);
    view.y -= (y - height / 2) * (1 / before - 1 / after);
    if (view.zoom === 1) [view.x, view.y] = middle;
    canvas.style.touchAction = view.zoom > 1 ? "none" : "pan-y";
    hover(-1);
  };
  const step = (dx, dy) => {
    const current = hovered >= 0 ? hovered : kept;
    if (current < 0) return nearest(width / 2, height / 2, Infinity);
    const [x, y] = onScreen(current);
    let best = current, least = Infinity;
    for (let n = 0; n < points.length; n++) {
      if (n === current || !isShown(n)) continue;
      const [px, py] = onScreen(n), along = (px - x) * dx + (py - y) * dy, aside = Math.abs((px - x) * dy - (py - y) * dx);
      const cost = along + 2 * aside;
      if (along > 0.5 && aside <= along && cost < least) [best, least] = [n, cost];
    }
    return best;
  };
  const bring = (number) => {
    const [x, y] = onScreen(number);
    if (x < 0 || y < 0 || x > width || y > height) [view.x, view.y] = points[number];
  };
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (arrows[event.key]) {
      const number = step(...arrows[event.key]);
      if (number >= 0) {
        bring(number);
        hover(number);
        element("said").textContent = texts[number];
      }
    } else if (event.key === "Enter" || event.key === " ") {
      if (hovered >= 0) keep(hovered);
    } else if (event.key === "Escape") {
      hover(-1);
      keep(-1);
    } else if (event.key === "+" || event.key === "=") zoomBy(1.5);
    else if (event.key === "-") zoomBy(1 / 1.5);
    else if (event.key === "0") zoomBy(0);
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("blur", () => hover(-1));

  const fingers = new Map();
  let dragged = 0;
  const place = (event) => [event.offsetX, event.offsetY];
  canvas.addEventListener("pointerdown", (event) => {
    if (!fingers.size) dragged = 0;
    fingers.set(event.pointerId, place(event));
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event), before = fingers.get(event.pointerId);
    if (!before) return hover(nearest(x, y, 14));
    const other = [...fingers].find(([id]) => id !== event.pointerId);
    dragged += Math.hypot(x - before[0], y - before[1]);
    fingers.set(event.pointerId, [x, y]);
    if (other) {
      const [ox, oy] = other[1], spread = (at) => Math.max(1, Math.hypot(at[0] - ox, at[1] - oy));
      zoomBy(spread([x, y]) / spread(before), (x + ox) / 2, (y + oy) / 2);
    } else if (dragged > 5 && view.zoom > 1) {
      view.x -= (x - before[0]) / unit();
      view.y += (y - before[1]) / unit();
      hover(-1);
    }
  });
  const lift = (event) => {
    const [x, y] = place(event), wasDown = fingers.delete(event.pointerId);
    if (event.type !== "pointerup" || !wasDown || dragged > 5) return;
    const number = nearest(x, y, event.pointerType === "mouse" ? 14 : 24);
    if (number < 0) return;
    keep(number);
    hover(number);
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") hover(-1); // a finger that is lifted leaves its text to be read
  });
  canvas.addEventListener("wheel", (event) => {
    // Without Ctrl the page scrolls, unless somebody has come to the map; a pinch on a touchpad arrives as Ctrl and wheel.
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY / 300), ...place(event));
  }, { passive: false });

  element("closer").addEventListener("click", () => zoomBy(1.5));
  element("farther").addEventListener("click", () => zoomBy(1 / 1.5));
  element("whole").addEventListener("click", () => zoomBy(0));
  search.addEventListener("input", look);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && matches && matches.size) keep([...matches][0]);
  });
  for (const button of document.querySelectorAll("[data-label]")) button.addEventListener("click", () => {
    const label = Number(button.dataset.label), shown = hiddenLabels.delete(label);
    if (!shown) hiddenLabels.add(label);
    button.setAttribute("aria-pressed", String(shown));
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    draw();
  });
  new ResizeObserver(measure).observe(canvas);
  readColours();
  measure();
  const named = Number.parseInt(location.hash.slice(1), 10);
  if (named >= 0 && named < points.length) keep(named);
})();
