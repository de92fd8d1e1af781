"""The style sheet of the report: light and dark, one column on a phone, three on a wide screen."""

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#17202a;--soft:#55606d;--rule:#d5dae1;--accent:#0064a0;
--good:#007a59;--risk:#a86200;--bad:#b93d00;--none:#6b7480;--goodbg:#009e73;--riskbg:#e69f00;--badbg:#d55e00;
--nonebg:#9aa3ad}
@media(prefers-color-scheme:dark){:root{--page:#12161b;--card:#1b2128;--ink:#e8ecf1;--soft:#a3adb9;--rule:#39424d;
--accent:#6cc0f5;--good:#3ccfa5;--risk:#f0b440;--bad:#ff8f57;--none:#a3adb9}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.45 system-ui,"DejaVu Sans",sans-serif}
main{max-width:1300px;margin:0 auto;padding:20px 16px 48px}
h1{font-size:1.7rem;line-height:1.2;margin:.2em 0}
h2{font-size:1.2rem;margin:1.6em 0 .5em}
h3{font-size:1.05rem;margin:0;overflow-wrap:anywhere}
p{margin:.3em 0}
a{color:inherit}
.soft,figcaption{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:10px;margin:14px 0;padding:0}
.tiles div,.panel,.card{background:var(--card);border:1px solid var(--rule);border-radius:8px}
.tiles div{padding:8px 12px}
.tiles dt{color:var(--soft);font-size:.85rem}
.tiles dd{margin:0;font-size:1.35rem;font-weight:600}
.panel{padding:12px}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:5px 10px 5px 0;vertical-align:top;border-top:1px solid var(--rule)}
th{color:var(--soft);font-weight:600;border-top:0;white-space:nowrap}
tfoot td{font-weight:600}
td.n{white-space:nowrap;font-variant-numeric:tabular-nums}
td{overflow-wrap:anywhere}
td[data-label=job]{min-width:9em}
td[data-label=zone]{min-width:7em}
.swatch{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.45em}
.badge{display:inline-block;white-space:nowrap;font-weight:600}
.badge::before{content:attr(data-symbol);display:inline-block;width:1.25em;height:1.25em;line-height:1.25em;
text-align:center;border-radius:50%;margin-right:.35em;color:#000;background:var(--nonebg)}
.badge.met::before,.badge.feasible::before{background:var(--goodbg)}
.badge.at-risk::before{background:var(--riskbg)}
.badge.missed::before,.badge.infeasible::before,.badge.crashed::before{background:var(--badbg)}
.lanes{display:grid;grid-template-columns:max-content 1fr;gap:6px 10px;align-items:center;font-size:.85rem}
.device{color:var(--soft)}
.lane{position:relative;height:48px;background:var(--page);border-radius:4px;overflow:hidden}
.low .lane{height:16px}
.lanes.low{gap:2px 10px;font-size:.75rem}
.lane svg{position:absolute;width:100%;height:100%}
.names span{position:absolute;padding:0 4px;line-height:16px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;
pointer-events:none;font-weight:600}
.times{position:relative;height:1.4em;color:var(--soft)}
.times span{position:absolute;transform:translateX(-50%)}
.times span:first-child{transform:none}
.who{display:flex;flex-wrap:wrap;gap:2px 16px;margin-top:8px;font-size:.85rem}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,370px),1fr));gap:14px}
.card{padding:12px;margin:0;min-width:0}
.card header{display:flex;justify-content:space-between;gap:10px}
.chart{display:block;width:100%;height:auto;margin:6px 0;font-size:13px}
.chart text{fill:var(--soft)}
.chart text.mark{fill:var(--ink)}
.grid{stroke:var(--rule);stroke-width:.7;fill:none}
.axis{stroke:var(--soft);fill:none}
.goal{stroke:var(--ink);stroke-width:1.4;stroke-dasharray:6 4;fill:none}
.raw{stroke:var(--accent);stroke-opacity:.3;stroke-width:.8;fill:none}
.curve{stroke:var(--accent);stroke-width:2;fill:none;stroke-linejoin:round}
.fan{fill:var(--riskbg)}
.likely{stroke:var(--risk);stroke-opacity:.6;stroke-width:1;fill:none}
.asked{fill:var(--risk)}
.deadline{stroke:var(--bad);stroke-width:1.6;fill:none}
.deadline.old{stroke-opacity:.45;stroke-dasharray:3 3}
.share{fill:var(--accent);fill-opacity:.75}
.share.beside{fill-opacity:.4}
.sign{width:34px;height:14px;vertical-align:-2px;margin-left:.6em}
.remark{fill:var(--ink)}
path.fault{stroke:var(--bad);stroke-width:2.4;fill:none}
.lane .fault{position:absolute;top:0;bottom:0;border-left:2px dashed var(--bad);padding:0}
.lane .fault::before{content:"✕";position:absolute;left:-8px;top:0;width:14px;height:14px;border-radius:50%;
line-height:14px;text-align:center;font-size:10px;font-weight:700;background:var(--badbg);color:#000}
.lane .away{position:absolute;top:0;bottom:0;background:repeating-linear-gradient(45deg,var(--soft) 0 2px,
transparent 2px 7px);opacity:.7}
.chart g rect{fill:var(--nonebg)}
.chart g text{fill:#000;text-anchor:middle;font-weight:700;font-size:11px}
g.met rect,g.feasible rect{fill:var(--goodbg)!important}
g.at-risk rect{fill:var(--riskbg)!important}
g.missed rect,g.infeasible rect,g.crashed rect{fill:var(--badbg)!important}
details{margin-top:6px;font-size:.9rem}
summary{cursor:pointer;color:var(--accent)}
pre{overflow-x:auto;background:var(--page);padding:8px;border-radius:6px;font-size:.8rem}
.legend{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,270px),1fr));gap:4px 18px;padding:0;
margin:0;list-style:none;font-size:.9rem}
.legend li{display:flex;gap:8px}
.legend svg{flex:0 0 34px;height:14px;margin-top:4px}
.legend svg text{fill:#000;font-size:11px;font-weight:700;text-anchor:middle}
@media(max-width:760px){
.stack thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
.stack tr{display:block;border-top:1px solid var(--rule);padding:8px 0}
.stack td{display:flex;gap:10px;border:0;padding:1px 0}
.stack td[data-label=target],.stack td[data-label=reached]{display:none}
.stack td::before{content:attr(data-label);color:var(--soft);flex:0 0 6.2em}
.stack td:empty{display:none}
.numbers tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(4.6em,1fr));gap:2px 10px}
.numbers td{display:block}
.numbers td::before{display:block;font-size:.82rem}
.numbers .long,.numbers td[data-label=job]{grid-column:1/-1}
.numbers td[data-label=job]{font-weight:600}
.numbers tfoot td::before{font-weight:400}
.numbers td[data-label=job]::before{content:none}}
"""
