"""Several pools of one Ray cluster, whose autoscaler keeps one request for all of them; without Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import ray
import ray.autoscaler.sdk
import ray.autoscaler.v2.utils
from ray.experimental import internal_kv

from lightning_core.cluster.ray_nodes import MARKET_LABEL, POOL_LABEL, list_nodes
from lightning_core.parts.market.cloud import autoscaler_provisioner, provisioner
from lightning_core.parts.market.cloud.autoscaler_provisioner import EXPIRES, AutoscalerProvisioner, NodeDemand
from lightning_core.parts.market.cloud.provisioner import TYPE_LABEL, ZONE_LABEL
from lightning_core.parts.market.node_counts import NodeCounts
from lightning_core.parts.market.offers import PlacedNodes
from tests.waiting import until


class Cloud:
    """A Ray cluster as the provisioners see it: its store, its request, its nodes, and the clock on the wall."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store: dict[bytes, bytes] = {}
        self.request: list[dict[str, str]] = []
        self.resources: list[dict[str, int]] = []
        self.nodes: dict[str, dict[str, str]] = {}
        self.drained: list[str] = []
        self.now = 1e9
        for name, function in (
            ("_internal_kv_put", lambda key, value, overwrite, namespace: self.store.update({key: value})),
            ("_internal_kv_get", lambda key, namespace: self.store.get(key)),
            ("_internal_kv_del", lambda key, namespace: self.store.pop(key, None)),
            ("_internal_kv_list", lambda prefix, namespace: [key for key in self.store if key.startswith(prefix)]),
        ):
            monkeypatch.setattr(internal_kv, name, function)
        monkeypatch.setattr(ray.autoscaler.v2.utils, "is_autoscaler_v2", lambda fetch_from_server: True)
        monkeypatch.setattr(ray.autoscaler.sdk, "request_resources", self._request)
        monkeypatch.setattr(autoscaler_provisioner, "wall_time", lambda: self.now)
        monkeypatch.setattr(autoscaler_provisioner, "list_nodes", self._list)
        monkeypatch.setattr(autoscaler_provisioner, "list_zones", self._zones)
        monkeypatch.setattr(autoscaler_provisioner, "drain", lambda address, node, leave: self.drained.append(node))
        monkeypatch.setattr(ray, "get_runtime_context", lambda: type("Context", (), {"gcs_address": "here"}))

    def _request(self, bundles: list[dict[str, int]], bundle_label_selectors: list[dict[str, str]]) -> None:
        self.resources, self.request = bundles, bundle_label_selectors

    def _list(self, resource: str, pool: str, *, labelled: bool = False) -> dict[str, str]:
        """As :func:`provisioner.list_nodes` does, of nodes that are labels alone."""
        return {
            name: labels[MARKET_LABEL]
            for name, labels in self.nodes.items()
            if name not in self.drained and labels.get(POOL_LABEL, pool) == pool
            and (not labelled or POOL_LABEL in labels)
        }  # fmt: skip

    def _zones(self) -> dict[str, tuple[str, str]]:
        return {
            name: (labels[ZONE_LABEL], labels.get(TYPE_LABEL, ""))
            for name, labels in self.nodes.items() if ZONE_LABEL in labels
        }  # fmt: skip

    def requested(self, **labels: str) -> int:
        wanted = {POOL_LABEL if name == "pool" else MARKET_LABEL: value for name, value in labels.items()}
        return sum(selector == wanted for selector in self.request)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    return Cloud(monkeypatch)


@pytest.fixture
def made(cloud: Cloud) -> Any:
    several = list[AutoscalerProvisioner]()

    def make(pool: str, *words: str) -> AutoscalerProvisioner:
        several.append(AutoscalerProvisioner("device", pool=pool, words=words))
        return several[-1]

    yield make
    for one in several:
        one.close()


Make = Callable[..., AutoscalerProvisioner]


def test_two_pools_ask_for_the_sum_of_what_both_demand(cloud: Cloud, made: Make) -> None:
    one, other = made("one"), made("other")
    one.scale_to(NodeCounts(2, 1))
    other.scale_to(NodeCounts(1, 0))
    assert (cloud.requested(kind="spot"), cloud.requested(kind="on-demand")) == (3, 1)
    assert cloud.resources == [{"device": 1}] * 4
    one.scale_to(NodeCounts(0, 1))
    assert (cloud.requested(kind="spot"), cloud.requested(kind="on-demand")) == (1, 1)
    one.close()
    assert (cloud.requested(kind="spot"), cloud.requested(kind="on-demand")) == (1, 0)
    other.close()
    assert cloud.request == []
    assert cloud.store == {}


def test_pools_with_node_types_of_their_own_ask_for_those(cloud: Cloud, made: Make) -> None:
    made("one", "labelled").scale_to(NodeCounts(2, 0))
    made("other", "labelled").scale_to(NodeCounts(1, 1))
    assert cloud.requested(kind="spot", pool="one") == 2
    assert cloud.requested(kind="spot", pool="other") == cloud.requested(kind="on-demand", pool="other") == 1
    assert len(cloud.request) == 4


def test_nodes_of_an_offer_are_asked_for_by_their_labels_and_others_are_drained(cloud: Cloud, made: Make) -> None:
    one, spot = made("one"), {MARKET_LABEL: "spot"}
    for name, zone, its_type in (
        ("a1", "a", "small"),
        ("a2", "a", "small"),
        ("b1", "b", "small"),
        ("b2", "b", "large"),
    ):
        cloud.nodes[name] = spot | {ZONE_LABEL: zone, TYPE_LABEL: its_type}
    one.scale_to(NodeCounts(3, 1), [PlacedNodes("a", "", 1, 1), PlacedNodes("b", "large", 2, 0)])
    assert cloud.request == [
        {**spot, ZONE_LABEL: "a"}, {MARKET_LABEL: "on-demand", ZONE_LABEL: "a"},
        *[{**spot, ZONE_LABEL: "b", TYPE_LABEL: "large"}] * 2,
    ]  # fmt: skip
    assert sorted(cloud.drained) == [
        "a2",
        "b1",
    ]  # one too many of the first offer, and one of a type that is not wanted
    assert autoscaler_provisioner.read_demands()[0].places == (
        PlacedNodes("a", "", 1, 1),
        PlacedNodes("b", "large", 2, 0),
    )
    one.scale_to(NodeCounts(1, 0))
    assert cloud.request == [spot]


def test_what_a_pool_demanded_expires_when_it_no_longer_renews_it(cloud: Cloud, made: Make) -> None:
    dead = NodeDemand("dead", "device", 5, 5, False, cloud.now + EXPIRES)
    cloud.store[b"demand/dead"] = json.dumps(
        {name: getattr(dead, name) for name in ("pool", "resource", "spot", "on_demand", "labelled", "until")}
    ).encode()
    cloud.store[b"demand/strange"] = b"[]"
    one = made("one")
    one.scale_to(NodeCounts(1, 0))
    assert cloud.requested(kind="spot") == 6
    cloud.now += EXPIRES + 1
    one.scale_to(NodeCounts(1, 0))
    assert cloud.requested(kind="spot") == 1
    assert list(cloud.store) == [b"demand/one"]


def test_a_pool_renews_its_demand_and_repairs_the_request(
    cloud: Cloud, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pool may have read the demands before this one wrote its own, and asked after it."""
    monkeypatch.setattr(autoscaler_provisioner, "RENEWS", 0.01)
    one = made("one")
    one.scale_to(NodeCounts(2, 0))
    cloud.request = []
    cloud.now += EXPIRES - 1
    until(lambda: cloud.requested(kind="spot") == 2)
    until(lambda: json.loads(cloud.store[b"demand/one"])["until"] == cloud.now + EXPIRES)


def test_a_new_provisioner_demands_nothing_and_drains_nothing_until_it_is_asked(cloud: Cloud, made: Make) -> None:
    cloud.nodes["a"] = {MARKET_LABEL: "spot"}
    made("one")
    assert (cloud.store, cloud.drained) == ({}, [])


def test_a_surplus_node_is_drained_and_none_of_another_pool(cloud: Cloud, made: Make) -> None:
    for name, kind, pool in (
        ("a", "spot", "one"), ("b", "spot", "one"), ("c", "spot", "other"), ("d", "on-demand", "other"),
    ):  # fmt: skip
        cloud.nodes[name] = {MARKET_LABEL: kind, POOL_LABEL: pool}
    one, other = made("one", "labelled"), made("other", "labelled")
    other.scale_to(NodeCounts(1, 1))
    one.scale_to(NodeCounts(1, 0))
    assert cloud.drained == ["b"]
    one.close()
    assert cloud.drained == ["b", "a"]


def test_nodes_without_the_label_of_a_pool_stay_as_long_as_a_pool_demands_as_many(cloud: Cloud, made: Make) -> None:
    cloud.nodes |= {name: {MARKET_LABEL: "spot"} for name in "abc"}
    one, other = made("one"), made("other")
    other.scale_to(NodeCounts(2, 0))
    cloud.drained.clear()  # it was alone
    one.scale_to(NodeCounts(1, 0))
    assert cloud.drained == []
    one.scale_to(NodeCounts(0, 0))
    assert cloud.drained == ["c"]


def test_another_word_is_refused(cloud: Cloud) -> None:
    with pytest.raises(ValueError, match="takes no other word than 'labelled', got labeled"):
        AutoscalerProvisioner("device", words=["labeled"])


def test_nodes_are_listed_by_the_label_of_their_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.state import state

    def node(name: str, alive: bool = True, devices: float = 1.0, **labels: str) -> dict[str, Any]:
        kinds = {POOL_LABEL if key == "pool" else MARKET_LABEL: value for key, value in labels.items()}
        return {"NodeID": name, "Alive": alive, "Resources": {"device": devices}, "Labels": kinds}

    nodes = [
        node("ours", kind="spot", pool="one"), node("theirs", kind="spot", pool="other"), node("any", kind="on-demand"),
        node("plain"), node("leaves", kind="spot", pool="one"), node("dead", alive=False, kind="spot"),
        node("head", devices=0.0),
    ]  # fmt: skip
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(state, "get_draining_nodes", lambda: {"leaves": 0})
    assert list_nodes("device", "one") == {"ours": "spot", "any": "on-demand", "plain": ""}
    assert list_nodes("device", "one", labelled=True) == {"ours": "spot"}
    assert list_nodes("device").keys() == {"ours", "theirs", "any", "plain"}
    assert provisioner.count_nodes("device") == NodeCounts(2, 1)
