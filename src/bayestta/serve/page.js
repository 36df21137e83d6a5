function card(row) {
  const [text, kind] = status(row);
  const node = make("a", { class: "card", href: `#/${row.id}`, id: `card-${row.id}` });
  node.append(
    make("h2", {}, row.id),
    sparkline(row.spark || []),
    make("p", {}, "Accuracy, estimated ", make("strong", {}, percent(row.accuracy))),
    make("p", {}, "Differs from zero-shot ", make("strong", {}, percent(row.disagreement))),
    make("p", {}, make("strong", { class: "images" }, String(row.samples ?? 0)), " images"),
    make("p", {}, make("span", { class: `badge ${kind}` }, text)),
  );
  return node;
}

function sentence(event) {
  const name = event.adapter;
  if (event.kind === "drift") return `${name}: the images have drifted (image ${event.sample}).`;
  if (event.kind === "harm") {
    return `${name}: ${event.labels} labels show harm; answers are zero-shot until a reset.`;
  }
  if (event.kind === "guard") return `${name}: the guard went back to the last good state.`;
  if (event.kind === "rollback") return `${name}: rolled back to step ${event.to}.`;
  return `${name}: removed.`;
}

function eventList(events) {
  const list = make("ul", { class: "events" });
  for (const event of events.slice(-8).reverse()) {
    const when = event.time ? new Date(1000 * event.time).toLocaleTimeString() : "";
    list.append(make("li", {}, `${when} ${sentence(event)}`));
  }
  return list;
}

function chart(title, series, low, high, mark) {
  const figure = make("figure", {}, make("h3", {}, title));
  const svg = make("svg", { class: "chart", viewBox: "-44 -8 600 180", role: "img" });
  svg.append(make("title", {}, title));
  const top = Math.max(high, mark ?? -Infinity);
  for (const value of [low, (low + top) / 2, top]) {
    const y = 150 - ((value - low) / (top - low || 1)) * 150;
    svg.append(make("line", { class: "grid", x1: 0, x2: 548, y1: y, y2: y }));
    const label = Math.abs(top - low) >= 5 ? value.toFixed(0) : value.toFixed(2);
    svg.append(make("text", { x: -6, y: y + 4, "text-anchor": "end" }, label));
  }
  if (mark !== undefined) {
    const y = 150 - ((mark - low) / (top - low || 1)) * 150;
    svg.append(make("line", { class: "ideal", x1: 0, x2: 548, y1: y, y2: y }));
    svg.append(make("text", { x: 544, y: y - 5, "text-anchor": "end" }, "alarm"));
  }
  series.forEach((values, i) => {
    const points = line(values, 548, 150, low, top);
    svg.append(make("polyline", { class: `curve ${COLOURS[i % 7]}`, points }));
  });
  figure.append(svg);
  return figure;
}

function numbers(row) {
  const list = make("dl", { class: "numbers" });
  const put = (term, value) => list.append(make("div", {}, make("dt", {}, term), make("dd", {}, value)));
  put("Images", String(row.samples));
  put("Step", String(row.step));
  put("Accuracy, estimated", percent(row.accuracy));
  put("Differs from zero-shot", percent(row.disagreement));
  put("Entropy (nats)", fixed(row.entropy));
  put("Effective classes", fixed(row.effective_classes, 1));
  put("Drift, log e-value", fixed(row.drift.log_evalue));
  put("Drift alarms", String(row.drift.alarms));
  put("Harm, log e-value", fixed(row.harm.log_evalue));
  put("Labels that counted", String(row.harm.labels));
  put("Returns of the guard", String(row.guard_returns));
  return list;
}

function charts(row, points) {
  const column = (name) => points.map((point) => point[name]);
  const box = make("div", { class: "figures" });
  const level = -Math.log(row.drift.alpha);
  const drift = column("drift");
  const classes = row.classes.slice(0, points.length ? points[0].shares.length : 0);
  box.append(
    chart("Accuracy, estimated without labels", [column("accuracy")], 0, 1),
    chart("Share that differs from zero-shot", [column("disagreement")], 0, 1),
    chart("Evidence of drift (log e-value)", [drift], Math.min(0, ...drift), level + 0.5, level),
    chart("Entropy of the answers (nats)", [column("entropy")], 0, Math.log(row.classes.length)),
    chart("Effective number of classes", [column("effective_classes")], 0, row.classes.length),
  );
  const curves = classes.map((_, k) => points.map((point) => point.shares[k]));
  const shares = chart("Share of each class", curves, 0, Math.max(0.1, ...curves.flat()));
  const legend = make("ul", { class: "legend" });
  classes.forEach((name, k) => legend.append(make("li", { class: COLOURS[k % 7] }, `■ ${name}`)));
  shares.append(legend);
  box.append(shares);
  return box;
}

function changedImages(kept) {
  const part = make("div", {}, make("h3", {}, "Last images whose answer adaptation changed"));
  if (!kept.keep_images) {
    part.append(make("p", { class: "about" }, "The server keeps no images; start it with --keep-images 12 to see them."));
    return part;
  }
  const grid = make("div", { class: "changed" });
  for (const each of kept.images) {
    const alt = `${each.answer} instead of ${each.zero_shot}`;
    grid.append(make("figure", {},
      make("img", { src: `data:image/jpeg;base64,${each.jpeg}`, alt }),
      make("figcaption", {}, alt)));
  }
  part.append(grid);
  return part;
}

function drawList() {
  const list = $("list");
  const focused = document.activeElement && document.activeElement.id;
  const rows = [...adapters.values()].sort((a, b) => a.id.localeCompare(b.id));
  list.replaceChildren(...rows.map(card));
  if (!rows.length) {
    list.append(make("p", {}, "No adapter yet: POST /v1/adapters makes one; see the API page."));
  }
  if (focused && focused.startsWith("card-") && $(focused)) $(focused).focus();
  $("news").replaceChildren(...(news.length ? [eventList(news)] : []));
}

async function drawDetail() {
  const id = shown;
  const [row, kept] = await Promise.all([
    ask(`/v1/adapters/${encodeURIComponent(id)}`),
    ask(`/v1/adapters/${encodeURIComponent(id)}/images`),
  ]);
  if (id !== shown) return;
  const [text, kind] = status(row);
  $("detail").replaceChildren(
    make("p", {}, make("a", { href: "#" }, "← All adapters")),
    make("h2", {}, row.id),
    make("p", {}, make("span", { class: `badge ${kind}` }, text), ` ${row.method}, ${row.classes.length} classes`),
    numbers(row), charts(row, row.trail),
    make("h3", {}, "Alarms and returns"), eventList(row.events), changedImages(kept),
  );
}

function show(error) {
  $("state").textContent = error ? `Not connected: ${error.message}.` : `Live, ${adapters.size} adapters.`;
}

async function draw() {
  due = false;
  try {
    $("list").hidden = shown !== null;
    $("detail").hidden = shown === null;
    if (shown === null) drawList();
    else await drawDetail();
    show(null);
  } catch (error) {
    show(error);
  }
}

function soon() {
  if (due) return;
  due = true;
  setTimeout(draw, 300);
}

function take(kind, row) {
  if (kind === "summary") adapters.set(row.id, row);
  if (kind === "event") {
    if (row.kind === "removed") adapters.delete(row.adapter);
    else news.push(row);
    if (news.length > 50) news.shift();
  }
  soon();
}

async function listen(number) {
  const answer = await fetch(`/v1/events?after=${number}`, { headers: headers() });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server ended the connection");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const found = /^event: (\w+)\ndata: (.*)$/s.exec(part);
      if (found) take(found[1], JSON.parse(found[2]));
    }
  }
}

async function start() {
  for (;;) {
    try {
      const all = await ask("/v1/adapters");
      adapters.clear();
      all.adapters.forEach((row) => adapters.set(row.id, row));
      news.splice(0, news.length, ...all.events.filter((event) => event.kind !== "removed"));
      await draw();
      await listen(all.number);
    } catch (error) {
      show(error);
      await new Promise((done) => setTimeout(done, 2000));
    }
  }
}

function follow() {
  shown = location.hash.startsWith("#/") ? decodeURIComponent(location.hash.slice(2)) : null;
  draw();
}
addEventListener("hashchange", follow);
$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value;
  sessionStorage.setItem("key", key);
});
follow();
start();
