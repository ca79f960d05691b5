"""A workflow's graph as a drawing: tasks in layers from left to right, edges as curves, all numbers ready for SVG.

The method of Sugiyama in four steps: layers by longest path; an edge that crosses a layer gets a place in it; the order
within layers by barycentres, swept back and forth; heights by least squares with a least distance. Each step is
linear or nearly so in what is drawn, and what is drawn is bounded by NODES_MOST and EDGES_MOST.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from tenure.model.frozen import frozen
from tenure.model.workflow import Graph, Node

NODES_MOST: Final = 300
"""Above so many tasks those of one agent, type and depth are one node; above so many of these, those of one depth."""
EDGES_MOST: Final = 1_500
"""Further edges are left out of the drawing, which says so."""
PLACES_MOST: Final = 6_000
"""Places that edges may take in the layers that they cross; the rest are drawn straight."""
SWEEPS: Final = 6

WIDTH: Final = 148
HEIGHT: Final = 44
GAP_X: Final = 44
GAP_Y: Final = 14
PASSING: Final = 10
MARGIN: Final = 8
NAME_CHARS: Final = 16
SAYS_CHARS: Final = 24

ENDED: Final = frozenset({"succeeded", "failed", "dead", "cancelled", "skipped"})
_RANK: Final = ("dead", "failed", "running", "leased", "waiting", "queued", "blocked", "cancelled", "skipped")
"""What a node of many tasks shows as its state: the first of these that one of them is in, else succeeded."""


@frozen
class Box:
    """One node where it stands."""

    node: Node
    state: str
    x: float
    y: float
    shape: str
    """The outline as an SVG path."""
    sheets: Sequence[str]
    """Further outlines behind it, where it stands for many tasks."""
    name: str
    says: str
    is_dashed: bool
    has_band: bool


@frozen
class Curve:
    """One edge, from the right side of a node to the left side of another."""

    path: str
    tip: str
    is_done: bool
    """What it waits for has happened."""
    is_loose: bool
    """It waits for any end, not for success."""


@frozen
class Drawing:
    """The picture, and how many layers it has. `left_out` edges are not in it."""

    width: int
    height: int
    layers: int
    boxes: Sequence[Box]
    curves: Sequence[Curve]
    left_out: int
    is_folded: bool


@frozen
class _Place:
    """Something that takes room in a layer: a node, or an edge that passes through it."""

    id: str
    layer: int
    height: int


def bounded(graph: Graph, most: int = NODES_MOST) -> Graph:
    """The graph with at most about `most` nodes: what is still too many is one node per layer."""
    if len(graph.nodes) <= most:
        return graph
    layers: dict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        layers[node.depth].append(node)
    shown = sorted(layers)[:most]
    home = {node.id: f"layer {depth}" for depth in shown for node in layers[depth]}
    nodes = [_merged(f"layer {depth}", layers[depth]) for depth in shown]
    edges = {
        (home[src], home[dst], kind)
        for src, dst, kind in graph.edges
        if src in home and dst in home and home[src] != home[dst]
    }
    return Graph(nodes, sorted(edges), graph.counts, is_folded=True)


def _merged(name: str, members: Sequence[Node]) -> Node:
    states: Counter[str] = Counter()
    for node in members:
        states.update(node.states or {node.state: node.tasks})
    agents = sorted({node.agent for node in members})
    starts = [node.started_at for node in members if node.started_at is not None]
    ends = [node.ended_at for node in members if node.ended_at is not None]
    return Node(
        id=name,
        name=name,
        agent=agents[0] if len(agents) == 1 else f"{len(agents)} agents",
        task_type="tasks",
        state=worst(states),
        depth=members[0].depth,
        tasks=sum(states.values()),
        states=dict(states),
        started_at=min(starts, default=None),
        ended_at=max(ends, default=None),
    )


def worst(states: Mapping[str, int]) -> str:
    """The state that says most about tasks in several."""
    return next((state for state in _RANK if states.get(state)), "succeeded")


def draw(graph: Graph) -> Drawing:
    """The drawing of a graph that is bounded already."""
    nodes = {node.id: node for node in graph.nodes}
    edges = [edge for edge in graph.edges if edge[0] in nodes and edge[1] in nodes][:EDGES_MOST]
    layer_of = layers(graph.nodes, edges)
    places, chains = _places(layer_of, edges)
    ordered = _ordered(places, chains)
    y_of = _heights(ordered, chains)
    height = max((y + HEIGHT for y in y_of.values()), default=0)
    boxes = [_box(node, MARGIN + layer_of[node.id] * (WIDTH + GAP_X), y_of[node.id]) for node in graph.nodes]
    state = {box.node.id: box.state for box in boxes}
    curves = [
        _curve(chain, layer_of[src], layer_of[dst], y_of, kind, _is_done(state[src], kind))
        for chain, (src, dst, kind) in zip(chains, edges, strict=True)
    ]
    count = max(layer_of.values(), default=-1) + 1
    return Drawing(
        width=2 * MARGIN + max(count, 1) * (WIDTH + GAP_X) - GAP_X,
        height=round(height + MARGIN),
        layers=count,
        boxes=boxes,
        curves=curves,
        left_out=len(graph.edges) - len(edges),
        is_folded=graph.is_folded,
    )


def layers(nodes: Sequence[Node], edges: Sequence[tuple[str, str, str]]) -> dict[str, int]:
    """Each node's layer: one behind the last that it waits for. What the store says of its depth is the least."""
    before: dict[str, int] = {node.id: 0 for node in nodes}
    after: dict[str, list[str]] = defaultdict(list)
    for src, dst, _ in edges:
        before[dst] += 1
        after[src].append(dst)
    least = min((node.depth for node in nodes), default=0)
    layer = {node.id: node.depth - least for node in nodes}
    ready = [node.id for node in nodes if not before[node.id]]
    for one in ready:  # grows while it is walked
        for dst in after[one]:
            layer[dst] = max(layer[dst], layer[one] + 1)
            before[dst] -= 1
            if not before[dst]:
                ready.append(dst)
    dense = {depth: place for place, depth in enumerate(sorted(set(layer.values())))}
    return {one: dense[depth] for one, depth in layer.items()}


def _places(
    layer_of: Mapping[str, int], edges: Sequence[tuple[str, str, str]]
) -> tuple[list[list[_Place]], list[list[str]]]:
    """What stands in each layer, and each edge as the chain of places that it runs through."""
    places: list[list[_Place]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for one, layer in layer_of.items():
        places[layer].append(_Place(one, layer, HEIGHT))
    chains, room = [], PLACES_MOST
    for number, (src, dst, _) in enumerate(edges):
        chain = [src]
        span = range(layer_of[src] + 1, layer_of[dst])
        if len(span) <= room:
            room -= len(span)
            for layer in span:
                passing = _Place(f"edge {number} {layer}", layer, PASSING)
                places[layer].append(passing)
                chain.append(passing.id)
        chains.append([*chain, dst])
    return places, chains


def _ordered(places: list[list[_Place]], chains: Sequence[Sequence[str]]) -> list[list[_Place]]:
    """The order within layers: each place near the middle of its neighbours, looked at from both sides by turns."""
    before, after = _neighbours(chains)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        near = before if forward else after
        order = range(len(places)) if forward else range(len(places) - 1, -1, -1)
        at = {one.id: float(place) for layer in places for place, one in enumerate(layer)}
        for number in order:
            layer = places[number]
            wanted = {
                one.id: sum(at[other] for other in near[one.id]) / len(near[one.id]) if near[one.id] else at[one.id]
                for one in layer
            }
            layer.sort(key=lambda one: wanted[one.id])
            at.update({one.id: float(place) for place, one in enumerate(layer)})
    return places


def _heights(ordered: Sequence[Sequence[_Place]], chains: Sequence[Sequence[str]]) -> dict[str, float]:
    """The upper edge of every place: near the middle of its neighbours, none closer to the next than GAP_Y."""
    before, after = _neighbours(chains)
    y: dict[str, float] = {}
    for layer in ordered:
        at = 0.0
        for one in layer:
            y[one.id] = at
            at += one.height + GAP_Y
    tall = {one.id: one.height for layer in ordered for one in layer}
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        near = before if forward else after
        for layer in ordered if forward else list(ordered)[::-1]:
            wanted = [
                sum(y[other] + tall[other] / 2 for other in near[one.id]) / len(near[one.id]) - one.height / 2
                if near[one.id]
                else y[one.id]
                for one in layer
            ]
            placed = _spread(wanted, [one.height + GAP_Y for one in layer])
            y.update({one.id: value for one, value in zip(layer, placed, strict=True)})
    top = min(y.values(), default=0.0) - MARGIN
    return {one: round(value - top, 1) for one, value in y.items()}


def _spread(wanted: Sequence[float], rooms: Sequence[float]) -> list[float]:
    """Values as near to the wanted ones as can be, each at least a room above the one before: the pool of adjacent
    violators, after the rooms are taken off."""
    offsets, total = [], 0.0
    for room in rooms:
        offsets.append(total)
        total += room
    pools: list[tuple[float, int]] = []  # mean, how many
    for value, offset in zip(wanted, offsets, strict=True):
        mean, count = value - offset, 1
        while pools and pools[-1][0] > mean:
            other, members = pools.pop()
            mean, count = (mean * count + other * members) / (count + members), count + members
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [mean + offset for mean, offset in zip(flat, offsets, strict=True)]


def _neighbours(chains: Sequence[Sequence[str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    before: dict[str, list[str]] = defaultdict(list)
    after: dict[str, list[str]] = defaultdict(list)
    for chain in chains:
        for src, dst in pairwise(chain):
            before[dst].append(src)
            after[src].append(dst)
    return before, after


def _box(node: Node, x: float, y: float) -> Box:
    many = node.tasks > 1
    state = worst(node.states) if node.states else node.state
    name = f"{node.tasks:,} × {node.task_type}" if many and not node.name.startswith("layer ") else node.name
    says = _counted(node.states) if many else node.agent + (", optional" if node.is_optional else "")
    return Box(
        node=node,
        state=state,
        x=x,
        y=y,
        shape=_shape(state, x, y),
        sheets=[_rectangle(x + 6, y - 6), _rectangle(x + 3, y - 3)] if many else (),
        name=_cut(name, NAME_CHARS),
        says=_cut(says, SAYS_CHARS),
        is_dashed=state in {"blocked", "skipped", "cancelled"},
        has_band=state in {"running", "leased"},
    )


def _counted(states: Mapping[str, int]) -> str:
    order = {name: place for place, name in enumerate((*_RANK, "succeeded"))}
    known = sorted(states.items(), key=lambda one: order.get(one[0], len(order)))
    return ", ".join(f"{count:,} {state}" for state, count in known)


def _shape(state: str, x: float, y: float) -> str:
    """Box: ended well or to do. Hexagon: waits. Cut corners: dead."""
    right, low = x + WIDTH, y + HEIGHT
    if state == "waiting":
        middle = y + HEIGHT / 2
        return f"M{x + 12} {y}H{right - 12}L{right} {middle}L{right - 12} {low}H{x + 12}L{x} {middle}z"
    if state in {"dead", "failed"}:
        return f"M{x + 8} {y}H{right - 8}L{right} {y + 8}V{low - 8}L{right - 8} {low}H{x + 8}L{x} {low - 8}V{y + 8}z"
    return _rectangle(x, y)


def _rectangle(x: float, y: float) -> str:
    return f"M{x} {y}H{x + WIDTH}V{y + HEIGHT}H{x}z"


def _curve(chain: Sequence[str], first: int, last: int, y_of: Mapping[str, float], kind: str, is_done: bool) -> Curve:
    """From place to place: straight through a layer, bent between two."""
    pitch = WIDTH + GAP_X
    y = y_of[chain[0]] + HEIGHT / 2
    path = f"M{MARGIN + first * pitch + WIDTH} {y:g}"
    for far, one in enumerate(chain[1:-1], first + 1):
        left, level = MARGIN + far * pitch, y_of[one] + PASSING / 2
        bend = left - GAP_X / 2
        path += f"C{bend:g} {y:g} {bend:g} {level:g} {left} {level:g}H{left + WIDTH}"
        y = level
    end_x = MARGIN + last * pitch
    end_y = y_of[chain[-1]] + HEIGHT / 2
    tip_x = end_x - 7
    bend = end_x - GAP_X / 2
    path += f"C{bend:g} {y:g} {bend:g} {end_y:g} {tip_x:g} {end_y:g}"
    tip = f"M{tip_x:g} {end_y - 3.5:g}L{end_x:g} {end_y:g}L{tip_x:g} {end_y + 3.5:g}z"
    return Curve(path, tip, is_done, kind != "ok")


def _is_done(state: str, kind: str) -> bool:
    return state == "succeeded" if kind == "ok" else state in ENDED


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
