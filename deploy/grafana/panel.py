# SPDX-License-Identifier: Apache-2.0
"""A panel, a row, a dashboard, and the PromQL that panels are made of."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel. `kind` is Grafana's; `queries` are pairs of PromQL and legend; `width` of 24.

    `no_value` is what it prints where the queries have no data."""

    title: str
    unit: str
    queries: tuple
    meaning: str
    action: str
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    no_value: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    title: str
    panels: tuple


@dataclasses.dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    description: str
    rows: tuple
    has_layer: bool = False


def _selected(metric, labels):
    return f"{metric}{{$pods, {labels}}}" if labels else f"{metric}{{$pods}}"


def _summed(text, by):
    return f"sum by ({by}) ({text})" if by else f"sum({text})"


def rate(metric, by="", labels=""):
    """sum by (BY) of a counter's rate."""
    return _summed(f"rate({_selected(metric, labels)}[$__rate_interval])", by)


def gauge(metric, by="", labels=""):
    """sum by (BY) of a gauge."""
    return _summed(_selected(metric, labels), by)


def least(metric):
    """The smallest value of a gauge."""
    return f"min({_selected(metric, '')})"


def quantile(level, metric):
    return f"histogram_quantile({level}, {rate(metric + '_bucket', 'le')})"


def quantiles(metric):
    return ((quantile(0.5, metric), "half"), (quantile(0.99, metric), "99 of 100"))
