#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes dashboards/*.json and docs/dashboards.md from panels.py; --check only compares.

The JSON has no uid of a data source or folder: Grafana asks for the data source by a variable, so a
file can be imported anywhere.
"""
import json
import os
import re
import sys

import panels

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(FOLDER))
DOCUMENT = os.path.join(ROOT, "docs", "dashboards.md")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTIONS = {"$pods": 'namespace=~"$namespace", model=~"$model", pod=~"$pod"',
              "$models": 'namespace=~"$namespace", model=~"$model"'}
COLUMNS = 24
ROW_HEIGHT = 1
PANEL_HEIGHTS = {"stat": 4, "heatmap": 12}
PANEL_HEIGHT = 8
SCHEMA_VERSION = 39
METRIC = re.compile(r"\b(?:moebius[a-z_:0-9]*|process_[a-z_]+|up)\b(?=[{:)\[ ]|$)")


def expand(query):
    """PromQL as Grafana gets it."""
    for name, selection in SELECTIONS.items():
        query = query.replace(name, selection)
    return query


def target(index, query, legend):
    return {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expand(query),
            "legendFormat": re.sub(r"\{(\w+)\}", r"{{\1}}", legend), "range": True}


def options_of(panel):
    """What is particular to a kind of panel: field configuration and options."""
    custom, options = {}, {}
    if panel.kind == "timeseries":
        custom = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 10, "showPoints": "never",
                  "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"}}
        options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True,
                              "calcs": []},
                   "tooltip": {"mode": "multi", "sort": "desc"}}
    elif panel.kind == "heatmap":
        options = {"calculate": False, "cellGap": 0, "yAxis": {"axisPlacement": "left"},
                   "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5,
                             "fill": "dark-orange", "reverse": False},
                   "showValue": "never", "tooltip": {"show": True, "yHistogram": False},
                   "legend": {"show": True}, "exemplars": {"color": "rgba(255,0,255,0.7)"}}
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""},
                   "orientation": "horizontal" if panel.kind == "bargauge" else "auto"}
    defaults = {"unit": panel.unit, "custom": custom} if custom else {"unit": panel.unit}
    if panel.unit == "percentunit":
        defaults["min"] = 0
    if panel.no_value:
        defaults["noValue"] = panel.no_value
    return {"fieldConfig": {"defaults": defaults, "overrides": []}, "options": options}


def panel_json(panel, place):
    return {"type": panel.kind, "title": panel.title, "datasource": DATASOURCE,
            "description": f"{panel.meaning}\n\n{panel.action}", "gridPos": place,
            "targets": [target(index, query, legend)
                        for index, (query, legend) in enumerate(panel.queries)],
            **options_of(panel)}


def panels_json(dashboard):
    """Rows of panels from left to right, each row of the grid as high as its highest."""
    result, top = [], 0
    for row in dashboard.rows:
        result.append({"type": "row", "title": row.title, "collapsed": False, "panels": [],
                       "gridPos": {"h": ROW_HEIGHT, "w": COLUMNS, "x": 0, "y": top}})
        top += ROW_HEIGHT
        left = height = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            own = PANEL_HEIGHTS.get(panel.kind, PANEL_HEIGHT)
            result.append(panel_json(panel, {"h": own, "w": panel.width, "x": left, "y": top}))
            left, height = left + panel.width, max(height, own)
        top += height
    for index, entry in enumerate(result, 1):
        entry["id"] = index
    return result


def choice(name, label, query, several=True):
    everything = {"text": "All", "value": "$__all"}
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE,
            "query": query, "refresh": 2, "sort": 3, "includeAll": several, "multi": several,
            "current": everything if several else {}}


def variables(dashboard):
    result = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
         "refresh": 1, "current": {}},
        choice("namespace", "Namespace", "label_values(moebius_build_info, namespace)"),
        choice("model", "Model",
               'label_values(moebius_build_info{namespace=~"$namespace"}, model)'),
        choice("pod", "Pod", expand("label_values(moebius_build_info{$models}, pod)")),
    ]
    if dashboard.has_layer:
        result.append(choice("layer", "Layer", expand(
            "label_values(moebius_expert_load_max_over_mean{$pods}, layer_group)"), several=False))
    return result


def dashboard_json(dashboard):
    restarts = {"name": "Starts", "enable": True, "datasource": DATASOURCE, "iconColor": "orange",
                "expr": expand("changes(process_start_time_seconds{$pods}[$__interval]) > 0"),
                "titleFormat": "{{pod}} started"}
    return {"title": dashboard.title, "description": dashboard.description, "tags": ["moebius"],
            "schemaVersion": SCHEMA_VERSION, "editable": True, "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
            "graphTooltip": 1, "annotations": {"list": [restarts]},
            "templating": {"list": variables(dashboard)}, "panels": panels_json(dashboard)}


def metrics_of(panel):
    names = []
    for query, _ in panel.queries:
        names += [name for name in METRIC.findall(query) if name not in names]
    return names


def document():
    """docs/dashboards.md."""
    lines = ["<!-- SPDX-License-Identifier: Apache-2.0 -->", "# Dashboards", "",
             "What each panel of `deploy/grafana/dashboards` shows, and what to do about it. This page and the",
             "dashboards are made from `deploy/grafana/panels.py` by `deploy/grafana/make_dashboards.py`; a test fails when",
             "they differ. [metrics.md](metrics.md) has the meaning of each metric, [operations.md](operations.md) the alerts.",
             "Names with a colon are recorded by `deploy/prometheus/recording_rules.yml`.", "",
             "Each dashboard asks for the data source, namespaces, models and pods; Experts for a layer, too. Starts of",
             "processes are marked in all of them.", "",
             "Not there, for want of anything to show: changes of the placement, which is fixed when a router starts, and GPUs."]
    for dashboard in panels.DASHBOARDS:
        lines += ["", f"## {dashboard.title.split(' / ')[1]}", "", dashboard.description]
        for row in dashboard.rows:
            lines += ["", f"### {row.title}", "", "| panel | metrics | meaning | what to do |",
                      "| --- | --- | --- | --- |"]
            for panel in row.panels:
                metrics = "<br>".join(f"`{name}`" for name in metrics_of(panel))
                lines.append(f"| {panel.title} | {metrics} | {panel.meaning} | {panel.action} |")
    return "\n".join(lines) + "\n"


def outputs():
    """{path: text} of everything that is made."""
    result = {DOCUMENT: document()}
    for dashboard in panels.DASHBOARDS:
        path = os.path.join(FOLDER, "dashboards", f"moebius-{dashboard.name}.json")
        result[path] = json.dumps(dashboard_json(dashboard), indent=1, ensure_ascii=False) + "\n"
    return result


def main(arguments):
    stale = 0
    for path, text in outputs().items():
        if "--check" in arguments:
            with open(path, encoding="utf-8") as file:
                if file.read() == text:
                    continue
            print(f"{os.path.relpath(path, ROOT)} is not what panels.py says: run "
                  "deploy/grafana/make_dashboards.py")
            stale += 1
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
