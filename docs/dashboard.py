"""Makes the Grafana dashboard of a pool, lightning_core/parts/web/monitoring/dashboard.json.

    pip install grafana-foundation-sdk==1769699998!10.1.0
    python docs/dashboard.py

Grafana 10.1 and later read it: Dashboards, New, Import.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import GraphDrawStyle
from grafana_foundation_sdk.models.dashboard import DataSourceRef
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PATH = Path(__file__).parents[1] / "lightning_core" / "parts" / "web" / "monitoring" / "dashboard.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
# The pool that is chosen above, by the address that Prometheus scrapes.
POOL = '{instance=~"$pool"}'
# Panels side by side in a row of 24 columns.
WIDTH, HEIGHT = 8, 8

# Title, what it means, unit, and for each line its expression and legend.
Lines = tuple[str, str, str, list[tuple[str, str]]]
STATS: list[Lines] = [
    ("Jobs at risk", "Verdict `at risk`: late by the likely case.", "none", [
        ('sum(lightning_core_jobs_judged{verdict="at risk",instance=~"$pool"})', "")]),
    ("Jobs infeasible", "No chance even alone.", "none", [
        ('sum(lightning_core_jobs_judged{verdict="infeasible",instance=~"$pool"})', "")]),
    ("Devices in use", "Sum of shares over devices.", "percentunit", [
        (f"sum(lightning_core_device_share_ratio{POOL}) / sum(lightning_core_devices{POOL})", "")]),
    ("Scheduler", "1: the pool's scheduler answers.", "none", [(f"min(lightning_core_up{POOL})", "")]),
]  # fmt: skip
ROWS: dict[str, list[Lines]] = {
    "Jobs": [
        ("Seconds to spare", "From the likely end of a job to its deadline; below zero it would be late.", "s",
         [(f"lightning_core_job_spare_seconds{POOL}", "{{job_name}}")]),
        ("Share", "Share that a job has of its devices.", "percentunit",
         [(f"lightning_core_job_share_ratio{POOL}", "{{job_name}}")]),
        ("Loss", "Current loss of a job.", "none", [(f"lightning_core_job_loss{POOL}", "{{job_name}}")]),
        ("Throughput", "Batches in a second of training.", "none",
         [(f"lightning_core_job_throughput_batches_per_second{POOL}", "{{job_name}}")]),
        ("Jobs by state", "All jobs that the pool remembers.", "none",
         [(f"sum by (state) (lightning_core_jobs{POOL})", "{{state}}")]),
        ("Jobs by verdict", "All jobs that the pool remembers.", "none",
         [(f"sum by (verdict) (lightning_core_jobs_judged{POOL})", "{{verdict}}")]),
    ],
    "Devices, owners and money": [
        ("Use of devices", "Sum of the shares of the jobs on a device.", "percentunit",
         [(f"lightning_core_device_share_ratio{POOL}", "{{device}}")]),
        ("Devices of owners", "Devices of an owner's jobs, each by its share.", "none",
         [(f"lightning_core_owner_devices{POOL}", "{{owner}}")]),
        ("Device time of owners", "Time on one device, and what may be used of it.", "s",
         [(f"lightning_core_owner_used_device_seconds{POOL}", "{{owner}}"),
          (f"lightning_core_owner_budget_device_seconds{POOL}", "{{owner}}: budget")]),
        ("Money", "What was spent on the market, and what may be.", "none",
         [(f"lightning_core_spent_total{POOL}", "spent"), (f"lightning_core_budget{POOL}", "budget")]),
        ("Rented nodes", "Nodes that are up, and those that are wanted.", "none",
         [(f"lightning_core_nodes{POOL}", "{{kind}}"), (f"lightning_core_nodes_wanted{POOL}", "{{kind}} wanted")]),
        ("Faults in 15 minutes", "Faults after which a job restarted.", "none",
         [(f"sum by (cause) (increase(lightning_core_faults_total{POOL}[15m]))", "{{cause}}")]),
        ("Ended in an hour", "Jobs that have ended, by verdict.", "none",
         [(f"sum by (verdict) (increase(lightning_core_jobs_ended_total{POOL}[1h]))", "{{verdict}}")]),
    ],
    "Scheduler": [
        ("Events per second", "By kind; `report` are the reports of jobs.", "none",
         [(f"sum by (kind) (rate(lightning_core_events_total{POOL}[1m]))", "{{kind}}")]),
        ("Time of a decision", "Median, and the time that 1 of 100 exceeds.", "s",
         [(f"histogram_quantile({q}, sum by (le) (rate(lightning_core_decision_seconds_bucket{POOL}[5m])))", legend)
          for q, legend in ((0.5, "median"), (0.99, "99 %"))]),
        ("Time of a commit", "Mean.", "s",
         [(f"rate(lightning_core_commit_seconds_sum{POOL}[5m]) / rate(lightning_core_commit_seconds_count{POOL}[5m])",
           "{{instance}}")]),
        ("Size of the journal", "On disk, with its write-ahead log.", "bytes",
         [(f"lightning_core_journal_bytes{POOL}", "{{instance}}")]),
        ("Requests refused per second", "With connections that were refused.", "none",
         [(f"rate(lightning_core_requests_refused_total{POOL}[5m])", "{{instance}}")]),
        ("Connections", "Of scripts and commands.", "none",
         [(f"lightning_core_connections{POOL}", "{{instance}}")]),
    ],
}  # fmt: skip


def query(expression: str, legend: str = "") -> prometheus.Dataquery:
    """Return one line of a panel."""
    return prometheus.Dataquery().expr(expression).legend_format(legend)


def panel(kind: Any, of: Lines) -> Any:
    """Return a panel of a kind."""
    title, words, unit, lines = of
    made = kind().title(title).description(words).unit(unit).datasource(SOURCE).span(WIDTH).height(HEIGHT)
    for number, (expression, legend) in enumerate(lines):
        made = made.with_target(query(expression, legend).ref_id("ABC"[number]))
    return made


def jobs() -> Any:
    """Return the table of jobs, one line each; the value is the share."""
    about = "on (instance, job_name) group_left (owner, state, verdict, target) lightning_core_job_info"
    made = panel(table.Panel, ("Share and verdict of each job", "The value is the share.", "percentunit", []))
    now = query(f"lightning_core_job_share_ratio{POOL} * {about}").instant().format(PromQueryFormat.TABLE)
    return made.with_target(now.ref_id("A")).span(24)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    made = (
        dashboard.Dashboard("lightning_core")
        .uid("lightning-core")
        .tags(["lightning_core"])
        .refresh("15s")
        .time("now-1h", "now")
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("pool").label("Pool").datasource(SOURCE).multi(True).include_all(True)
            .all_value(".*").query("label_values(lightning_core_up, instance)")
        )
    )  # fmt: skip
    for one in STATS:
        made = made.with_panel(panel(stat.Panel, one).span(6).height(4))
    for title, panels in ROWS.items():
        made = made.with_row(dashboard.Row(title))
        for one in panels:
            made = made.with_panel(panel(timeseries.Panel, one).draw_style(GraphDrawStyle.LINE))
        if title == "Jobs":
            made = made.with_panel(jobs())
    return made


if __name__ == "__main__":
    PATH.write_text(JSONEncoder(sort_keys=True, indent=1).encode(build().build()) + "\n")
