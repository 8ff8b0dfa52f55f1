"""Which GPUs belong to which engine and learner rank: arithmetic on a topology.

Shared GPUs: learner ranks spread evenly over the nodes, engines lie on the same GPUs. GPUs of
their own: learner ranks fill the first nodes, engines take what is left, each within one node.
"""

from __future__ import annotations

from dataclasses import dataclass

from tbrl.config import TopologyConfig


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs of one node."""

    node: int
    devices: tuple[int, ...]


def learner_places(t: TopologyConfig) -> list[Place]:
    """By rank."""
    a_node = -(-t.learner_world // t.nodes) if t.colocated else t.gpus_per_node
    return [Place(rank // a_node, (rank % a_node,)) for rank in range(t.learner_world)]


def engine_places(t: TopologyConfig) -> list[Place]:
    """By engine index; fewer than `rollout_workers` where they do not fit."""
    taken = set() if t.colocated else {(p.node, d) for p in learner_places(t) for d in p.devices}
    places = []
    for node in range(t.nodes):
        free = [device for device in range(t.gpus_per_node) if (node, device) not in taken]
        for first in range(0, len(free) - t.tensor_parallel + 1, t.tensor_parallel):
            places.append(Place(node, tuple(free[first : first + t.tensor_parallel])))
    return places[: t.rollout_workers]
