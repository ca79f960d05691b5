"""The drawing of a workflow's graph: layers, no box upon another, bounds, and shapes by state."""

from __future__ import annotations

import itertools
import random

import pytest

from tenure.model.workflow import Graph, Node
from tenure.web.pages.graph import EDGES_MOST, GAP_Y, HEIGHT, NODES_MOST, bounded, draw, layers


def _node(name: str, depth: int = 0, state: str = "succeeded", **more: object) -> Node:
    return Node(name, name, "agent", "kind", state, depth, **more)  # type: ignore[arg-type]


def _random_graph(seed: int, nodes: int, edges: int) -> Graph:
    chance = random.Random(seed)
    made = [_node(f"t{n}") for n in range(nodes)]
    pairs = {tuple(sorted(chance.sample(range(nodes), 2))) for _ in range(edges)}
    return Graph(made, [(f"t{src}", f"t{dst}", "ok") for src, dst in sorted(pairs)], {})


def test_a_task_stands_one_layer_behind_the_last_that_it_waits_for() -> None:
    nodes = [_node(name) for name in "abcd"]

    found = layers(nodes, [("a", "b", "ok"), ("b", "c", "ok"), ("a", "c", "ok"), ("a", "d", "ended")])

    assert found == {"a": 0, "b": 1, "c": 2, "d": 1}


@pytest.mark.parametrize("seed", range(6))
def test_boxes_never_overlap_and_edges_run_from_left_to_right(seed: int) -> None:
    graph = _random_graph(seed, 40, 70)

    drawing = draw(graph)

    columns: dict[float, list[float]] = {}
    for box in drawing.boxes:
        columns.setdefault(box.x, []).append(box.y)
        assert 0 <= box.y <= drawing.height - HEIGHT
    for heights in columns.values():
        for upper, lower in itertools.pairwise(sorted(heights)):
            assert lower - upper >= HEIGHT + GAP_Y - 0.2
    x_of = {box.node.id: box.x for box in drawing.boxes}
    assert all(x_of[src] < x_of[dst] for src, dst, _ in graph.edges)
    assert len(drawing.curves) == len(graph.edges)


def test_too_many_nodes_are_one_per_layer_and_too_many_edges_are_left_out() -> None:
    nodes = [_node(f"t{n}", depth=n % 7, state="dead" if n == 3 else "succeeded") for n in range(NODES_MOST * 2)]
    edges = [(f"t{n}", f"t{n + 1}", "ok") for n in range(len(nodes) - 1) if n % 7 != 6]

    folded = bounded(Graph(nodes, edges, {}))

    assert [node.name for node in folded.nodes] == [f"layer {depth}" for depth in range(7)]
    assert sum(node.tasks for node in folded.nodes) == len(nodes)
    assert folded.nodes[3].state == "dead"
    wide = _random_graph(1, 100, 3_000)
    drawing = draw(wide)
    assert len(drawing.curves) == EDGES_MOST
    assert drawing.left_out == len(wide.edges) - EDGES_MOST


def test_states_differ_in_shape_not_only_in_colour() -> None:
    states = ("succeeded", "running", "waiting", "dead", "blocked")

    boxes = draw(Graph([_node(state, state=state) for state in states], [], {})).boxes

    looks = {("".join(char for char in box.shape if char.isalpha()), box.is_dashed, box.has_band) for box in boxes}
    assert len(looks) == len(states)


def test_an_empty_graph_is_drawn_as_nothing() -> None:
    assert draw(Graph([], [], {})).boxes == []
