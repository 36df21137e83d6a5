"""The style sheet of the page: system fonts, and a palette that holds for colour-blind eyes.

The colours are those of Okabe and Ito without the yellow, darkened for a white page and lightened
for a black one, so that every curve has a contrast of at least 3:1.
"""

from __future__ import annotations

CSS = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --raised: #f6f7f9; --text: #1c2126; --soft: #59636e; --rule: #d8dde3;
  --span: #f1f3f6; --best: #0b5c96;
  --c0: #6b7580; --c1: #0072b2; --c2: #c14f00; --c3: #008a64; --c4: #a8447f; --c5: #8f6400;
  --c6: #3b86c4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --raised: #1d2226; --text: #e6e9ec; --soft: #a2acb6; --rule: #363d44;
    --span: #1f2428; --best: #8cc8f5;
    --c0: #9aa5b0; --c1: #56b4e9; --c2: #f08a3c; --c3: #2fc79b; --c4: #e39ac3; --c5: #e0b040;
    --c6: #8fb7ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main, header, footer { max-width: 1160px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 40px; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 {
  font-size: 1.3rem; line-height: 1.3; margin: 48px 0 4px; padding-top: 20px;
  border-top: 1px solid var(--rule);
}
h3 { font-size: 1rem; margin: 32px 0 8px; }
p { margin: 0 0 12px; }
h1, h2, h3, h4, p, li, summary, figcaption { overflow-wrap: anywhere; }
.about, figcaption, footer { color: var(--soft); font-size: 0.9rem; }
.headline { font-size: 1.05rem; margin-top: 8px; }
.headline strong { color: var(--best); }

.wide { overflow-x: auto; margin: 12px 0; border: 1px solid var(--rule); border-radius: 8px; }
table {
  border-collapse: collapse; width: 100%; font-size: 0.875rem; font-variant-numeric: tabular-nums;
}
th, td { padding: 7px 8px; text-align: right; white-space: nowrap; }
th:first-child {
  text-align: left; padding-left: 12px; position: sticky; left: 0; background: var(--page);
}
thead th, thead th:first-child { color: var(--soft); background: var(--raised); font-weight: 600; }
tbody th { font-weight: 500; }
tbody th, tbody td { border-top: 1px solid var(--rule); }
td strong { color: var(--best); }
td small { font-size: 0.82em; font-weight: 400; color: var(--soft); }

.figures {
  display: grid; gap: 28px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
}
.figures.small {
  gap: 20px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 200px), 1fr));
}
.figures.maps { grid-template-columns: repeat(auto-fill, minmax(min(100%, 210px), 1fr)); }
figure { margin: 12px 0 0; min-width: 0; max-width: 640px; }
figure h3, figure h4 { margin: 0 0 6px; font-size: 1rem; }
figure h4 { font-size: 0.9rem; }
.chart { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { font-size: 13px; fill: var(--soft); }
.small .chart text { font-size: 17px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.ideal { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 1 5; }
.span { fill: transparent; }
.span.odd { fill: var(--span); }
.curve {
  fill: none; stroke: currentColor; stroke-width: 2.2; stroke-linejoin: round;
  stroke-linecap: round;
}
.band { fill: currentColor; opacity: 0.14; }
.dot { fill: currentColor; stroke: var(--page); stroke-width: 1; }
.target { fill: transparent; }
.target:hover { fill: currentColor; fill-opacity: 0.25; }
.box { fill: none; stroke: var(--rule); stroke-width: 1; }
.hit { fill: var(--c1); }
.miss { fill: var(--c2); }
.chart .inside, .key .inside {
  font-size: 12px; font-weight: 600; fill: var(--page); dominant-baseline: central;
}
.chart.heat .row { font-size: 13px; }
.plane { max-width: 420px; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.c6 { color: var(--c6); }
.legend {
  list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 6px 0 4px; padding: 0;
  font-size: 0.9rem;
}
.legend li { display: flex; align-items: center; gap: 7px; min-width: 0; }
.key { flex: none; }
.cams {
  display: grid; gap: 16px 28px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr));
}
.turned { display: grid; grid-template-columns: repeat(auto-fill, minmax(96px, 1fr)); gap: 12px; }
.turned figure { margin: 0; font-size: 12px; }
.turned img { display: block; image-rendering: auto; border-radius: 4px; }
.cam p { margin: 0 0 4px; }
.cam > div { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 8px; }
.cam figure { margin: 0; }
.cam img { display: block; width: 100%; height: auto; border-radius: 4px; }

details { border: 1px solid var(--rule); border-radius: 8px; margin: 10px 0; padding: 0 14px; }
details .wide { border: 0; border-radius: 0; margin: 0 0 12px; }
details:not(.figure) th, details:not(.figure) td { text-align: left; }
details:not(.figure) td { white-space: normal; overflow-wrap: anywhere; }
details.figure { padding-bottom: 10px; }
details.figure:not([open]) { padding-bottom: 0; }
summary { cursor: pointer; padding: 9px 0; font-weight: 500; }
code { font: 0.92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
footer {
  margin-top: 56px; padding-top: 16px; padding-bottom: 40px; border-top: 1px solid var(--rule);
}

@media (max-width: 640px) {
  main, header, footer { padding-left: 14px; padding-right: 14px; }
  h1 { font-size: 1.5rem; }
  .figures.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 150px), 1fr)); }
  .chart text { font-size: 19px; }
  .small .chart text { font-size: 22px; }
  .figures.maps { grid-template-columns: 1fr; }
  .chart .spot { r: 14px; }
  .chart .inside { font-size: 17px; }
  .chart .spare { display: none; }
}
@media print { details, figure { break-inside: avoid; } }
"""
