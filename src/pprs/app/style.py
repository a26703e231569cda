"""How the page looks, in light and dark, wide and narrow."""

from __future__ import annotations

STYLE = """
:root { --m0: #3a3a3a; --m1: #0072B2; --m2: #C04E00; }
.dark { --m0: #d8d8d8; --m1: #56B4E9; --m2: #F0933A; }
.gradio-container { font-family: system-ui, sans-serif !important; max-width: 1400px !important; }
.pp { color: var(--body-text-color); }
.pp .cards, .pp.cards { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 12px; }
.pp .card { border: 1px solid var(--border-color-primary); border-top: 4px solid var(--c); border-radius: 8px;
  padding: 10px 12px; background: var(--background-fill-primary); min-width: 0; }
.pp h3 { font-size: 15px; margin: 0 0 8px; font-weight: 700; overflow-wrap: anywhere; line-height: 1.35; }
.pp h3 code { font-weight: 400; font-size: 12px; background: none; border: 0; padding: 0; color: var(--body-text-color);
  overflow-wrap: anywhere; white-space: normal; }
.pp .dot { display: inline-block; width: 10px; height: 10px; border-radius: 5px; background: var(--c);
  margin-right: 6px; }
.pp .tiles { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; }
.pp .tiles.wide { grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); }
.pp .tiles.five { grid-template-columns: repeat(5, minmax(0, 1fr)); gap: 12px; }
.pp figure { margin: 0; min-width: 0; }
.pp figure img { width: 100%; aspect-ratio: 1; object-fit: contain; background: #777; border-radius: 4px;
  display: block; image-rendering: pixelated; margin: 0; }
.pp figure img:hover, .pp figure img:focus-visible { transform: scale(2); position: relative; z-index: 60;
  box-shadow: 0 4px 24px #000a; }
.pp .card:first-child figure img { transform-origin: left; }
.pp .card:last-child figure img { transform-origin: right; }
.pp figcaption, .pp .note, .pp.note { color: var(--body-text-color); opacity: .82; font-size: 13px; line-height: 1.35;
  margin-top: 4px; overflow-wrap: anywhere; }
.pp.error { max-height: 16em; overflow-y: auto;
  border: 2px solid #c62828; border-radius: 8px; padding: 10px 14px; font-size: 15px;
  background: color-mix(in srgb, #c62828 12%, transparent); overflow-wrap: anywhere; }
.pp.empty { border: 1px dashed var(--border-color-primary); border-radius: 8px; padding: 20px; text-align: center;
  overflow-wrap: anywhere; }
.pp .big { display: flex; justify-content: space-between; align-items: baseline; gap: 8px; font-size: 22px;
  flex-wrap: wrap; }
.pp .big .label { overflow-wrap: anywhere; } .pp .big .num { font-size: 30px; font-weight: 700; color: var(--c);
  font-variant-numeric: tabular-nums; }
.pp .statement { margin: 6px 0 8px; font-size: 14px; line-height: 1.4; min-height: 4.2em; }
.pp .abstained { font-style: italic; }
.pp .bars { min-height: 60px; }
.pp .bar { display: grid; grid-template-columns: minmax(40px, 30%) 1fr 66px; gap: 8px; align-items: center;
  font-size: 13px; padding: 2px 0; }
.pp .bar .name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.pp .bar .num { text-align: right; font-variant-numeric: tabular-nums; }
.pp .rail { background: color-mix(in srgb, var(--body-text-color) 14%, transparent); border-radius: 3px; height: 12px; }
.pp .rail i { display: block; height: 12px; border-radius: 3px;
  background: color-mix(in srgb, var(--c) 55%, transparent); }
.pp .chosen .rail i { background: var(--c); } .pp .chosen .name { font-weight: 700; }
.pp .num { position: relative; border-bottom: 1px dotted currentColor; cursor: help; white-space: nowrap; }
.pp figcaption .num, .pp .tiles.wide .num { white-space: normal; }
.pp .num small { font-size: max(.62em, 11px); font-weight: 400; }
.pp .num:focus-visible { outline: 2px solid var(--color-accent); outline-offset: 2px; border-radius: 2px; }
.pp .num:hover::after, .pp .num:focus::after { content: attr(data-tip); position: fixed; left: 50%; bottom: 16px;
  transform: translateX(-50%); width: max-content; max-width: min(560px, 92vw); white-space: normal; z-index: 1000;
  background: #1c1c1c; color: #fff; font: 400 14px/1.4 system-ui, sans-serif; padding: 8px 12px; border-radius: 6px;
  text-align: left; box-shadow: 0 2px 12px #0008; }
.pp .growth { margin: 12px 0 0; } .pp .growth svg { width: 100%; height: auto; max-height: 220px; display: block; }
.pp .growth text { fill: var(--body-text-color); font: 12px system-ui, sans-serif; }
.pp .growth line { stroke: var(--body-text-color); opacity: .18; }
.pp .growth polyline { fill: none; stroke-width: 2.5; }
.pp.chart { background: #fff; border: 1px solid var(--border-color-primary); border-radius: 8px; padding: 8px; }
.pp.chart { overflow-x: auto; }
.pp.chart img { width: 100%; min-width: 520px; max-width: 860px; margin: 0 auto; display: block; }
.pp .scroll { overflow-x: auto; }
.pp table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
.pp table, .pp thead, .pp tr { border: 0 !important; }
.pp th, .pp td { padding: 6px 10px; border: 0 !important; text-align: right;
  border-bottom: 1px solid var(--border-color-primary) !important;
  white-space: nowrap; }
.pp th:first-child, .pp td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
  min-width: 9rem; }
.pp progress { width: 100%; height: 14px; }
button.lg, button.sm, .pp summary { min-height: 40px; }
#upload .wrap { font-size: 14px; line-height: 1.3; }
@media (max-width: 900px) { .pp .cards, .pp.cards { grid-template-columns: minmax(0, 1fr); }
  .pp .statement { min-height: 0; }
  .pp .tiles.five, .pp .tiles.wide { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .gradio-container { padding: 6px !important; }
  .pp .growth text { font-size: 22px; } }
@media (max-width: 500px) { button[role=tab] { padding: 4px 7px !important; font-size: 14px !important; }
  .tab-container button { padding: 4px 7px !important; font-size: 14px !important; } }
footer { display: none !important; }
"""
