"use strict";
const $ = (id) => document.getElementById(id);
const adapters = new Map(); // id -> summary
const news = [];
const COLOURS = ["c1", "c2", "c3", "c4", "c5", "c6", "c0"];
let key = sessionStorage.getItem("key") || "";
let shown = null; // id of the open adapter
let due = false;

const make = (tag, attributes = {}, ...children) => {
  const svg = ["svg", "path", "polyline", "line", "text", "title", "g"].includes(tag);
  const node = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};
const percent = (value) => (value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
const fixed = (value, digits = 2) => (value === undefined ? "–" : value.toFixed(digits));
const headers = () => (key ? { "X-API-Key": key } : {});

async function ask(path) {
  const answer = await fetch(path, { headers: headers() });
  if (answer.status === 401) {
    $("login").hidden = false;
    throw new Error("an API key is needed");
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error);
  $("login").hidden = true;
  return body;
}

function line(values, width, height, low, high) {
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  const span = high - low || 1;
  const place = (v) => height - ((Math.min(Math.max(v, low), high) - low) / span) * height;
  return values.map((v, i) => `${(i * step).toFixed(1)},${place(v).toFixed(1)}`).join(" ");
}

function sparkline(values) {
  const svg = make("svg", { class: "spark", viewBox: "0 0 200 36", preserveAspectRatio: "none" });
  svg.setAttribute("aria-hidden", "true");
  if (values.length > 1) {
    svg.append(make("polyline", {
      class: "curve", points: line(values, 200, 32, 0, 1), "vector-effect": "non-scaling-stroke",
    }));
  }
  return svg;
}

function status(row) {
  if (row.returned) return ["Returned to zero-shot", "alarm"];
  if (row.drift && row.drift.alarms) {
    return [`${row.drift.alarms} drift alarm${row.drift.alarms > 1 ? "s" : ""}`, "alarm"];
  }
  if (row.samples === undefined) return ["Not used since the start", ""];
  return ["No alarm", "calm"];
}

