"""Who sits with whom."""

from __future__ import annotations

from rl_api.sizes.layout import Group, as_text, nodes_of


def test_pods_of_a_pool_fill_its_nodes_in_order() -> None:
    nodes = nodes_of(
        [
            Group("learner", 2, 4, "h100", per_node=8, share=4),
            Group("sampler", 3, 2, "h100", per_node=8, tensor=2),
        ]
    )
    assert [(node.index, node.who, node.free) for node in nodes] == [
        (0, (("learner", 8),), 0),
        (1, (("sampler", 6),), 2),
    ]
    assert [seat.label for seat in nodes[0].seats[2:6]] == [
        *("copy 0 shard 2", "copy 0 shard 3", "copy 1 shard 0", "copy 1 shard 1"),
    ]
    assert [seat.label for seat in nodes[1].seats[:3]] == [
        "sampler 0 part 0",
        "sampler 0 part 1",
        "sampler 1 part 0",
    ]
    assert as_text(nodes) == [
        "h100 node 0: 2 learners of 4 devices (copy 0 shard 0 to copy 1 shard 3)",
        "h100 node 1: 3 samplers of 2 devices, 2 free",
    ]


def test_a_role_goes_where_another_left_room() -> None:
    nodes = nodes_of([Group("learner", 1, 2, "a", per_node=4), Group("sampler", 3, 1, "a", per_node=4)])
    assert [node.who for node in nodes] == [(("learner", 2), ("sampler", 2)), (("sampler", 1),)]


def test_nodes_that_are_alike_are_one_line() -> None:
    nodes = nodes_of([Group("learner", 32, 8, "h100", per_node=8, share=256)])
    assert as_text(nodes) == [
        "h100 nodes 0-31 each: 1 learner of 8 devices (copy 0 shard 0 to copy 0 shard 255)"
    ]


def test_stages_of_a_sampler() -> None:
    (node,) = nodes_of([Group("sampler", 1, 4, "a", per_node=4, tensor=2)])
    assert [seat.label for seat in node.seats] == [
        *("sampler 0 stage 0 part 0", "sampler 0 stage 0 part 1"),
        *("sampler 0 stage 1 part 0", "sampler 0 stage 1 part 1"),
    ]


def test_stages_of_a_sampler_in_two_pods() -> None:
    nodes = nodes_of([Group("sampler", 4, 2, "a", per_node=2, tensor=2, hosts=2)])
    assert [seat.label for node in nodes[1:3] for seat in node.seats] == [
        *("sampler 0 stage 1 part 0", "sampler 0 stage 1 part 1"),
        *("sampler 1 stage 0 part 0", "sampler 1 stage 0 part 1"),
    ]
    assert as_text(nodes) == ["a nodes 0-3 each: 1 sampler pod of 2 devices"]
    (node,) = nodes_of([Group("sampler", 2, 1, "a", per_node=2, hosts=2)])
    assert [seat.label for seat in node.seats] == ["sampler 0 stage 0", "sampler 0 stage 1"]
    found = nodes_of([Group("sampler", 2, 0, "cpu", hosts=2)])
    assert [seat.label for node in found for seat in node.seats] == ["sampler 0 pod 0", "sampler 0 pod 1"]
    assert as_text(found) == ["cpu nodes 0-1 each: 1 sampler pod"]


def test_without_a_size_each_pod_is_a_node() -> None:
    nodes = nodes_of([Group("learner", 1, 0, "cpu"), Group("sampler", 2, 0, "cpu")])
    assert as_text(nodes) == ["cpu node 0: 1 learner", "cpu nodes 1-2 each: 1 sampler"]
