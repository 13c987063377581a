import pytest

from rl_api.errors import InvalidConfig, RLTrainError
from rl_trainer.flow.policies import Entry, OrderedStore, Waiting, chosen, load_policy, on_arrival


def taken(store):
    return store.remove(store.peek().key)


def keys(store):
    return [taken(store).key for _ in range(len(store))]


def filled(order="fifo"):
    store = OrderedStore(order)
    for key, priority in (("a", 1.0), ("b", 5.0), ("c", 5.0), ("d", 0.0)):
        store.push(key, key.upper(), priority=priority, weight=2)
    return store


def test_fifo():
    store = filled()
    assert store.weight == 8
    assert store.peek().key == "a"
    assert keys(store) == ["a", "b", "c", "d"]
    assert store.weight == 0
    assert store.peek() is None
    assert store.oldest() is None


def test_what_is_pushed_goes_behind_all_others():
    store = filled()
    assert store.push("e", "E") == Entry("e", "E", priority=0.0, weight=1, arrival=4, offset=0)
    assert keys(store) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("order", "expected"), [("fifo", ["a", "b", "c", "d"]), ("priority", ["b", "c", "a", "d"])]
)
def test_what_is_replaced_keeps_its_place(order, expected):
    store = filled(order)
    store.replace("b", "less", weight=1)
    store.replace("c", "more", weight=5, offset=7)
    assert store.weight == 2 + 1 + 2 + 5
    assert list(store) == [
        Entry("a", "A", 1.0, 2, 0),
        Entry("b", "less", 5.0, 1, 1, 0),
        Entry("c", "more", 5.0, 5, 2, 7),
        Entry("d", "D", 0.0, 2, 3),
    ]
    assert keys(store) == expected


@pytest.mark.parametrize("order", ["fifo", "priority"])
def test_parts_of_one_piece_come_back_by_their_offset(order):
    store = OrderedStore(order)
    store.push("whole", "W", weight=3)
    whole = taken(store)
    store.push("later", "L")
    store.give_back([Entry(f"part {at}", "W", 0.0, 1, whole.arrival, at) for at in (2, 0, 1)])
    assert store.weight == 4
    assert keys(store) == ["part 0", "part 1", "part 2", "later"]


def test_priority_then_arrival():
    assert keys(filled("priority")) == ["b", "c", "a", "d"]


@pytest.mark.parametrize(("order", "expected"), [("fifo", ["a", "c", "d"]), ("priority", ["c", "a", "d"])])
def test_remove_by_key(order, expected):
    store = filled(order)
    assert store.remove("b").value == "B"
    assert len(store) == 3
    assert keys(store) == expected
    with pytest.raises(KeyError):
        store.remove("b")


@pytest.mark.parametrize(
    ("order", "expected"), [("fifo", ["a", "b", "c", "d", "e"]), ("priority", ["e", "b", "c", "a", "d"])]
)
def test_what_is_given_back_keeps_its_place(order, expected):
    store = filled(order)
    first, second = taken(store), taken(store)
    store.push("e", "E", priority=9.0)
    store.give_back([first, second])
    assert store.weight == 9
    assert keys(store) == expected


def test_a_key_that_comes_again_after_removal_has_its_new_place():
    store = filled("priority")
    store.remove("b")
    store.push("b", "again", priority=5.0)
    assert keys(store) == ["c", "b", "a", "d"]


def test_a_key_twice():
    store = filled()
    with pytest.raises(KeyError, match="already"):
        store.push("a", "A")


def test_iteration_is_by_arrival():
    assert [entry.key for entry in filled("priority")] == ["a", "b", "c", "d"]
    assert filled("priority").oldest().key == "a"


@pytest.mark.parametrize(
    ("on_full", "filled", "weight", "expected"),
    [
        ("block", 9, 1, "accept"),
        ("block", 10, 1, "wait"),
        ("dropOldest", 10, 1, "drop"),
        ("reject", 10, 1, "reject"),
        ("reject", 8, 3, "reject"),
        ("block", 1, 10, "wait"),
        ("block", 0, 11, "accept"),  # heavier than the whole capacity, and nothing to wait for
    ],
)
def test_full_policies(on_full, filled, weight, expected):
    assert on_arrival(on_full, filled, 10, weight) == expected


def test_an_arrival_weighs_one():
    assert on_arrival("block", 9, 10) == "accept"


def last(waiting):
    """The newest first, as a user may want it."""
    return len(waiting) - 1


def test_a_choice_of_the_users_is_made_anew_for_each_entry():
    store = filled(last)
    assert keys(store) == ["d", "c", "b", "a"]
    assert filled(lambda entries: max(range(len(entries)), key=lambda i: entries[i].value)).peek().key == "d"
    assert OrderedStore(last).peek() is None


def test_a_policy_is_one_of_ours_a_function_or_its_name():
    assert (load_policy("fifo"), load_policy("priority"), load_policy(last)) == ("fifo", "priority", last)
    assert load_policy("os.path:basename").__name__ == "basename"
    for wrong, sentence in (
        ("lifo", "found lifo, allowed: fifo, priority, a function, or its name as module:function"),
        ("no_such_module:f", "no_such_module:f cannot be imported"),
        ("os.path:no_such_function", "os.path:no_such_function cannot be imported"),
        ("os.path:sep", "os.path:sep is a str, not a function"),
    ):
        with pytest.raises(InvalidConfig, match=f"^order of a channel: {sentence}"):
            load_policy(wrong)


@pytest.mark.parametrize("said", [-1, 2, 0.0, True, None])
def test_a_policy_that_says_no_index_is_named(said):
    waiting = [Waiting("a", 1, 0.0, 0), Waiting("b", 1, 0.0, 1)]

    def policy(waiting):
        return said

    with pytest.raises(
        RLTrainError, match=rf"policy returned {said!r}, allowed: an index of what waits, 0 to 1$"
    ):
        chosen(policy, waiting)


def test_a_policy_that_raises_is_named():
    with pytest.raises(RLTrainError, match=r"^order of a channel: .*<lambda> raised ZeroDivisionError: "):
        chosen(lambda waiting: 1 // 0, [Waiting("a", 1, 0.0, 0)])
