"""The page's own style: no font, script or file from elsewhere; light, dark, phone and paper."""

CSS = """
:root{color-scheme:light dark;--ground:#fff;--panel:#f6f7f9;--ink:#1b1f24;--faint:#59636e;
--rule:#d5dae0;--blue:#0072b2;--orange:#d55e00;--blue-rgb:0,114,178;--orange-rgb:213,94,0}
@media (prefers-color-scheme:dark){:root{--ground:#14171b;--panel:#1d2126;--ink:#e8eaed;
--faint:#a2abb5;--rule:#394049;--blue:#56b4e9;--orange:#f0924b;--blue-rgb:86,180,233;
--orange-rgb:240,146,75}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
main{max-width:62rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .75rem}
h2{font-size:1.2rem;margin:2.5rem 0 .75rem;padding-bottom:.3rem;border-bottom:1px solid var(--rule)}
p{margin:.5rem 0;max-width:46rem}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.25rem 0}
.tile{background:var(--panel);border:1px solid var(--rule);border-radius:.5rem;
padding:.7rem 1rem;flex:1 1 13rem}
.tile b{display:block;font-size:1.7rem;line-height:1.3;font-variant-numeric:tabular-nums}
.tile span{display:block;color:var(--faint);font-size:.85rem}
.doubts{border-left:4px solid var(--orange);background:var(--panel);padding:.6rem 1rem;
margin:1rem 0;max-width:none}
.doubts ul{margin:.3rem 0;padding-left:1.2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.5rem 0}
.scroll{overflow-x:auto;max-width:100%;overflow-wrap:normal}
caption{caption-side:bottom;text-align:left;color:var(--faint);font-size:.85rem;
padding-top:.5rem;overflow-wrap:anywhere}
.titled caption{caption-side:top;color:var(--ink);font-size:.95rem;font-weight:600;
padding:.5rem 0 .4rem}
.numbers th,.numbers td{padding:.35rem .9rem;text-align:right;border-bottom:1px solid var(--rule);
white-space:nowrap}
.numbers th:first-child{text-align:left;padding-left:.4rem;font-weight:500}
.numbers thead th{color:var(--faint);font-size:.85rem;font-weight:600}
.numbers .own th,.numbers .own td{font-weight:700}
.bars{width:9rem;min-width:6rem}
.bar{display:block;height:.6rem;border-radius:.15rem;background:var(--blue);min-width:1px}
.heat th,.heat td{padding:.3rem .45rem;text-align:center;font-size:.85rem;min-width:2.4rem;
border:1px solid var(--ground)}
.heat th{color:var(--faint);font-weight:500}
.heat tbody th{text-align:right}
.heat .right{background:rgba(var(--blue-rgb),calc(.08 + .42*var(--share)))}
.heat .wrong{background:rgba(var(--orange-rgb),calc(.15 + .75*var(--share)))}
.heat .none{color:var(--rule)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr));gap:1rem}
.charts figure,.pictures figure{margin:0;background:var(--panel);border:1px solid var(--rule);
border-radius:.5rem;padding:.7rem}
.charts figcaption{font-weight:600;font-size:.95rem}
.chart{width:100%;height:auto;display:block;overflow:visible}
.chart text{font-size:12px;fill:var(--faint);text-anchor:middle}
.chart .end{text-anchor:end}.chart .start{text-anchor:start}
.chart .label{font-size:12.5px;fill:var(--ink)}
.chart .grid{stroke:var(--rule);stroke-width:1}.chart .axis{stroke:var(--faint);stroke-width:1}
.chart .mark{stroke:var(--faint);stroke-width:1;stroke-dasharray:1 3}
.chart .curve polyline,.chart .curve line{fill:none;stroke-width:2.2;stroke-linejoin:round}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,17rem),1fr));
gap:.75rem}
.pictures figure{display:grid;grid-template-columns:repeat(3,1fr);gap:.5rem;break-inside:avoid}
.pictures figcaption{grid-column:1/-1;display:flex;gap:.7rem;align-items:baseline;
font-size:.85rem;flex-wrap:wrap}
.pictures figcaption span{color:var(--faint)}
.pictures .verdict{margin-left:auto;font-weight:600}
.pictures .fooled,.pictures .wrong{color:var(--orange)}.pictures .held{color:var(--blue)}
.panel{text-align:center;line-height:1.3;font-size:.85rem}
.panel img{width:100%;height:auto;display:block;image-rendering:pixelated;border-radius:.2rem}
.panel small{display:block;color:var(--faint);margin-top:.25rem}
.pairs{width:100%;font-size:.9rem}
.pairs th{text-align:left;font-weight:500;color:var(--faint);padding:.2rem 1rem .2rem 0;
vertical-align:top;width:14rem;max-width:40%}
.pairs td{padding:.2rem 0;overflow-wrap:anywhere}
.pairs tr{border-bottom:1px solid var(--rule)}
footer{margin-top:3rem;color:var(--faint);font-size:.85rem}
@media print{:root{--ground:#fff;--panel:#fff;--ink:#000;--faint:#444;--rule:#bbb;--blue:#0072b2;
--orange:#d55e00;--blue-rgb:0,114,178;--orange-rgb:213,94,0}
body{font-size:11pt;print-color-adjust:exact;-webkit-print-color-adjust:exact}
main{max-width:none;padding:0}h2{break-after:avoid}
table,figure,.tile{break-inside:avoid}.scroll{overflow:visible}}
"""
